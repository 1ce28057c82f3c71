"""What an instructor needs on paper: the day by the clock, each lesson's pitfalls, plans without GPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import TYPE_CHECKING

from ppwork.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ppwork.course import Card, Lesson

BREAK_MINUTES, LUNCH_MINUTES = 10, 60
WORK_MINUTES = 60
"""A break comes as near to this as whole lessons allow."""
NOON = 12 * 60
"""The first break from here on is lunch, if the day began before."""
START = "09:00"
_CLOCK = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)")

TEMPLATE = Path(__file__).parent / "deck_files" / "instructor.md"


@dataclass(frozen=True)
class Slot:
    """A stretch of the day."""

    start: int
    """Minutes after midnight."""
    minutes: int
    what: str
    card: Card | None = None
    """``None``: a pause."""


def notes(lessons: Sequence[Lesson], start: str = START) -> str:
    """Return the instructor's notes as Markdown.

    Args:
        lessons: All of the course.
        start: When the first lesson begins, as ``HH:MM``.

    Raises:
        PlanError: ``start`` is no time, or the day would end after midnight.
    """
    rows = ["| time | what | minutes | ranks |", "|---|---|---|---|", *map(_row, day(lessons, start))]
    parts = {"day": "\n".join(rows), "lessons": "\n\n".join(map(_about, lessons))}
    return Template(TEMPLATE.read_text()).substitute(parts)


def day(lessons: Sequence[Lesson], start: str = START) -> list[Slot]:
    """Return the day by the clock, with a break about every hour; errors are those of ``notes``."""
    if not (clock := _CLOCK.fullmatch(start)):
        raise PlanError(f"The course was to start at {start!r}.", check_first="--start HH:MM, such as 09:00")
    now = int(clock[1]) * 60 + int(clock[2])
    slots: list[Slot] = []

    def add(minutes: int, what: str, card: Card | None = None) -> None:
        nonlocal now
        slots.append(Slot(now, minutes, what, card))
        now += minutes

    worked = 0
    for card in (lesson.card for lesson in lessons):
        if worked and worked + card.minutes - WORK_MINUTES > WORK_MINUTES - worked:
            lunch = slots[0].start < NOON <= now and all(slot.what != "Lunch" for slot in slots)
            add(*(LUNCH_MINUTES, "Lunch") if lunch else (BREAK_MINUTES, "Break"))
            worked = 0
        add(card.minutes, f"{card.number} {card.question}", card)
        worked += card.minutes
    add(0, "End")
    if now >= 24 * 60:
        raise PlanError(f"From {start}, the course ends after midnight.", check_first="--start, earlier")
    return slots


def _row(slot: Slot) -> str:
    minutes, ranks = slot.minutes or "", slot.card.ranks if slot.card else ""
    return f"| {slot.start // 60:02d}:{slot.start % 60:02d} | {slot.what} | {minutes} | {ranks} |"


def _about(lesson: Lesson) -> str:
    card = lesson.card
    where = " or ".join(device.upper() for device in card.runs_on)
    facts = (
        f"[{lesson.file}](../notebooks/{lesson.file}): {card.minutes} minutes, {card.ranks} ranks, {where}."
    )
    parts = [f"### {card.number} {card.question}", facts]
    parts += [f"Needs: {card.needs}."] if card.needs else []
    for title, items in (("Goals:", card.goals), ("Expect this to go wrong:", card.expect)):
        if items:
            parts += [title, "\n".join(f"- {item}" for item in items)]
    return "\n\n".join(parts)
