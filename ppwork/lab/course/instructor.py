"""The instructor's notes: the lessons in order with their minutes, what goes wrong, plans without GPUs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from string import Template

from ppwork.lab.course.lessons import Lesson
from ppwork.pictures.tables import Table

TEMPLATE = Path(__file__).parent / "deck_files" / "instructor.md"


def notes(lessons: Sequence[Lesson]) -> str:
    """Return the instructor's notes of all lessons of the course, as Markdown."""
    cards = [lesson.card for lesson in lessons]
    rows = []
    for card, total in zip(cards, accumulate(card.minutes for card in cards), strict=True):
        so_far = f"{total // 60}:{total % 60:02d}"
        rows.append([f"{card.number} {card.question}", str(card.minutes), so_far, str(card.ranks)])
    day = Table(["lesson", "minutes", "so far", "ranks"], rows).markdown().rstrip()
    parts = {"day": day, "lessons": "\n\n".join(map(_about, lessons))}
    return Template(TEMPLATE.read_text()).substitute(parts)


def _about(lesson: Lesson) -> str:
    card = lesson.card
    where = " or ".join(device.upper() for device in card.runs_on)
    link = f"[{lesson.file}](../notebooks/{lesson.file})"
    facts = f"{link}: {card.minutes} minutes, {card.ranks} ranks, {where}."
    parts = [f"### {card.number} {card.question}", facts]
    parts += [f"Needs: {card.needs}."] if card.needs else []
    for title, items in (("Goals:", card.goals), ("Expect this to go wrong:", card.expect)):
        if items:
            parts += [title, "\n".join(f"- {item}" for item in items)]
    return "\n\n".join(parts)
