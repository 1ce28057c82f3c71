"""The instructor's notes: the clock of two days and of one, what goes wrong, what to leave out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from string import Template

from ppwork.lab.course.lessons import Exercise, Lesson
from ppwork.lab.course.timetable import DAY_ENDS, Day, TimetableSlot, clock, cuts, one_day, two_days, wanted
from ppwork.pictures.tables import Table

FILES = Path(__file__).parent / "deck_files"
CAPSTONE = 14
HEAD = ("clock", "what", "minutes", "exercises", "ranks")


def notes(lessons: Sequence[Lesson]) -> str:
    """Return the instructor's notes of all lessons of the course, as Markdown."""
    capstone = [lesson for lesson in lessons if lesson.card.lesson == CAPSTONE]
    parts = {
        "two_days": _two_days(lessons),
        "one_day": _one_day(lessons),
        "day_ends": clock(DAY_ENDS),
        "order": ", ".join(lesson.card.number for lesson in reversed(wanted(lessons))),
        "cuts": _cuts(lessons),
        "pairs": "".join(map(_pairs, capstone)),
        "lessons": "\n\n".join(map(_about, lessons)),
    }
    return Template((FILES / "instructor.md").read_text()).substitute(parts)


def _two_days(lessons: Sequence[Lesson]) -> str:
    parts = []
    for day in two_days(lessons):
        for half, slots in day.halves.items():
            parts += [f"### {half.title}", _table(slots)] if slots else []
        parts += [_homework(day)] if day.at_home or day.left_out else []
    return "\n\n".join(parts)


def _homework(day: Day) -> str:
    lessons = [f"lesson {lesson.card.number}" for lesson in day.at_home]
    exercises = [_named(cut.leave_out) for cut in day.left_out]
    exercises[:1] = [f"the exercises {exercises[0]}"] if exercises else []
    return f"Homework, so that the day ends at {clock(day.ends)}: {'; '.join([*lessons, *exercises])}."


def _one_day(lessons: Sequence[Lesson]) -> str:
    slots = one_day(lessons)
    kept = {slot.lesson.card.lesson for slot in slots if slot.lesson}
    rest = ", ".join(each.card.number for each in lessons if each.card.lesson not in kept)
    return f"{_table(slots)}\n\nLeft out: {f'lessons {rest}' if rest else 'nothing'}."


def _table(slots: Sequence[TimetableSlot]) -> str:
    rows = []
    for slot in slots:
        when = f"{clock(slot.starts)} to {clock(slot.ends)}"
        card = slot.lesson.card if slot.lesson else None
        facts = [str(card.minutes), str(slot.exercise_minutes), str(card.ranks)] if card else ["", "", ""]
        rows.append([when, slot.what, *facts])
    return Table(HEAD, rows).markdown().rstrip()


def _cuts(lessons: Sequence[Lesson]) -> str:
    rows = [
        [cut.lesson.card.number, _named(cut.leave_out), _named(cut.keep), str(cut.minutes)]
        for cut in cuts(lessons)
    ]
    return Table(["lesson", "leave out", "keep", "saves, min"], rows).markdown().rstrip()


def _named(exercises: Sequence[Exercise]) -> str:
    return "; ".join(f"{each.number} {each.title}" for each in exercises)


def _pairs(lesson: Lesson) -> str:
    card = lesson.card
    minutes = {"minutes": card.minutes, "exercises": card.exercise_minutes, "ranks": card.ranks}
    return Template((FILES / "pairs.md").read_text()).substitute(minutes)


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
