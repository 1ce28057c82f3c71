"""The instructor's notes: the lessons in order with their minutes, what goes wrong, plans without GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

from ppwork.lab.course.lessons import Lesson, by_half_day
from ppwork.pictures.tables import Table

TEMPLATE = Path(__file__).parent / "deck_files" / "instructor.md"


def notes(lessons: Sequence[Lesson]) -> str:
    """Return the instructor's notes of all lessons of the course, as Markdown."""
    cards = [lesson.card for lesson in lessons]
    rows = []
    totals: dict[str, int] = {}
    for lesson, card in zip(lessons, cards, strict=True):
        half = next(each.title for each, members in by_half_day([lesson]).items() if members)
        total = totals[half] = totals.get(half, 0) + card.minutes + card.exercise_minutes
        so_far = f"{total // 60}:{total % 60:02d}"
        times = [str(card.minutes), str(card.exercise_minutes)]
        rows.append([half, f"{card.number} {card.question}", *times, so_far, str(card.ranks)])
    day = Table(["when", "lesson", "minutes", "exercises", "so far", "ranks"], rows).markdown().rstrip()
    parts = {"day": day, "lessons": "\n\n".join(map(_about, lessons))}
    return Template(TEMPLATE.read_text()).substitute(parts)


def _about(lesson: Lesson) -> str:
    card = lesson.card
    where = " or ".join(device.upper() for device in card.runs_on)
    link = f"[{lesson.file}](../notebooks/{lesson.file})"
    minutes = f"{card.minutes} minutes"
    minutes += f", {card.exercise_minutes} for the exercises" if card.exercise_minutes else ""
    facts = f"{link}: {minutes}, {card.ranks} ranks, {where}."
    parts = [f"### {card.number} {card.question}", facts]
    parts += [f"Needs: {card.needs}."] if card.needs else []
    for title, items in (("Goals:", card.goals), ("Expect this to go wrong:", card.expect)):
        if items:
            parts += [title, "\n".join(f"- {item}" for item in items)]
    return "\n\n".join(parts)
