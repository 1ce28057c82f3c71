"""The clock of the course: when each lesson begins and ends, what a day of less time leaves out.

All of it follows from the minutes on the lessons' cards, for any set of lessons.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ppwork.lab.course.lessons import Exercise, HalfDay, Lesson, by_half_day

SITTING_MIN, BREAK_MIN, LUNCH_MIN, SURVEY_MIN = 60, 10, 60, 10
"""People sit at most so long, unless one lesson is longer; then they have a break."""
STEP_MIN = 5
"""A lesson begins and ends at a time that is easy to say."""
NOON, DAY_STARTS, DAY_ENDS = 12 * 60, 9 * 60, 17 * 60 + 30
"""In minutes since midnight. A half-day that ends later is too long; lunch begins at noon or later."""
MOST_WANTED = (0, 1, 2, 4, 5, 9, 3, 7, 10, 14, 6, 13, 11, 12, 15, 16)
"""Lessons in the order in which they are kept: waits, overlap, a job that stands still, then the rest."""
KEPT_EXERCISES = 2
"""Programs of ranks that a lesson keeps when the time is short."""
ALWAYS_KEPT = ("14.3", "14.4")
"""Exercises that stay although their answers are functions: in the capstone they are what it is for."""
ON_RANKS, OF_A_FUNCTION = 2, 1
"""Share of the exercises' minutes on the card that one takes."""


@dataclass(frozen=True)
class TimetableSlot:
    """A part of a day."""

    starts: int
    """Minutes since midnight."""
    minutes: int
    what: str
    lesson: Lesson | None = None

    @property
    def ends(self) -> int:
        """Minutes since midnight."""
        return self.starts + self.minutes

    @property
    def exercise_minutes(self) -> int:
        """What is left of it after the lesson's talk."""
        return self.minutes - self.lesson.card.minutes if self.lesson else 0


@dataclass(frozen=True)
class Cut:
    """What a lesson leaves out when the time is short."""

    lesson: Lesson
    keep: tuple[Exercise, ...]
    leave_out: tuple[Exercise, ...]
    """In this order: functions first, then the programs that come before those that are kept."""
    minutes: int
    """That all of it saves."""


@dataclass(frozen=True)
class Day:
    """One day of two."""

    halves: Mapping[HalfDay, list[TimetableSlot]]
    at_home: tuple[Lesson, ...]
    """Lessons that it has no time for."""
    left_out: tuple[Cut, ...]
    """Exercises that it has no time for."""

    @property
    def slots(self) -> list[TimetableSlot]:
        """Both halves, without lunch."""
        return [slot for own in self.halves.values() for slot in own]

    def exercises_of(self, lesson: Lesson) -> tuple[Exercise, ...]:
        """Return those that a lesson has time for; none, if the day has no time for the lesson."""
        gone = [each for cut in self.left_out if cut.lesson is lesson for each in cut.leave_out]
        return tuple(each for each in lesson.exercises if lesson not in self.at_home and each not in gone)

    @property
    def ends(self) -> int:
        """Minutes since midnight."""
        return max((slot.ends for slot in self.slots), default=0)


def two_days(lessons: Sequence[Lesson]) -> list[Day]:
    """Return both days, each with what it has to leave out to end in time.

    First go exercises, those of the lesson that is wanted least first of all; then whole lessons. The fewest
    lessons are left out, and of the others the fewest exercises.
    """
    halves = by_half_day(lessons)
    days = {half.day: [other for other in halves if other.day == half.day] for half in halves}
    last = max(days, default=0)
    return [_day({half: halves[half] for half in own}, survey=day == last) for day, own in days.items()]


def _day(halves: dict[HalfDay, list[Lesson]], *, survey: bool) -> Day:
    """Leave out what one day has no time for; a morning that ends early enough loses nothing."""
    order = wanted([lesson for own in halves.values() for lesson in own])
    at_home: list[Lesson] = []
    day = _with_fewer_exercises(halves, at_home, survey=survey)
    for lesson in reversed(order[1:]):
        if day.ends <= DAY_ENDS:
            break
        without = [*at_home, lesson]
        if _timed(halves, without, [], survey=survey).ends < _timed(halves, at_home, [], survey=survey).ends:
            at_home = without
            day = _with_fewer_exercises(halves, at_home, survey=survey)
    return day


def _with_fewer_exercises(
    halves: dict[HalfDay, list[Lesson]], at_home: Sequence[Lesson], *, survey: bool
) -> Day:
    day = _timed(halves, at_home, [], survey=survey)
    kept = [lesson for own in halves.values() for lesson in own if lesson not in at_home]
    for cut in (cut for lesson in reversed(wanted(kept)) for cut in cuts([lesson])):
        if day.ends <= DAY_ENDS:
            break
        shorter = _timed(halves, at_home, [*day.left_out, cut], survey=survey)
        if shorter.ends < day.ends or (shorter.ends == day.ends and _is_hurried(cut.lesson)):
            day = shorter
    return day


def _timed(
    halves: dict[HalfDay, list[Lesson]], at_home: Sequence[Lesson], left_out: Sequence[Cut], *, survey: bool
) -> Day:
    """Put what stays of a day on the clock: after the morning, lunch."""
    saved = {cut.lesson.card.lesson: cut.minutes for cut in left_out}
    slots: dict[HalfDay, list[TimetableSlot]] = {}
    earliest = 0
    for half, own in halves.items():
        kept = [lesson for lesson in own if lesson not in at_home]
        slots[half] = _slots(kept, max(half.starts, earliest), saved)
        earliest = slots[half][-1].ends + LUNCH_MIN if kept else earliest
    last = next((own for own in reversed(slots.values()) if own), None)
    if survey and last is not None:
        last += _survey(last)
    by_number = sorted(left_out, key=lambda cut: cut.lesson.card.lesson)
    return Day(slots, tuple(sorted(at_home, key=lambda each: each.card.lesson)), tuple(by_number))


def one_day(lessons: Sequence[Lesson]) -> list[TimetableSlot]:
    """Return the slots of one day: as many of the most wanted lessons as it holds, in the course's order."""
    best: list[TimetableSlot] = []
    chosen: list[Lesson] = []
    for lesson in wanted(lessons):
        chosen = sorted([*chosen, lesson], key=lambda each: each.card.lesson)
        slots = _slots(chosen, DAY_STARTS, {}, lunch=True)
        slots += _survey(slots)
        if slots[-1].ends > DAY_ENDS:
            break
        best = slots
    return best


def wanted(lessons: Sequence[Lesson]) -> list[Lesson]:
    """Return lessons in the order in which they are kept, each after those that it needs.

    The last one is left out first.
    """
    here = {lesson.card.lesson: lesson for lesson in lessons}
    rank = {number: place for place, number in enumerate(MOST_WANTED)}
    order: dict[int, Lesson] = {}

    def keep(number: int, asked: tuple[int, ...]) -> None:
        for needed in here[number].card.needs_lessons:
            if needed in here and needed not in (*order, *asked):
                keep(needed, (*asked, needed))
        order.setdefault(number, here[number])

    for number in sorted(here, key=lambda number: (rank.get(number, len(rank)), number)):
        keep(number, (number,))
    return list(order.values())


def cuts(lessons: Sequence[Lesson]) -> list[Cut]:
    """Return what each lesson leaves out; one that keeps all of its exercises is not in it."""
    return [cut for lesson in lessons if (cut := _cut(lesson)).leave_out and cut.minutes]


def clock(minute: int) -> str:
    """Return a time of the day.

    >>> clock(9 * 60 + 5)
    '9:05'
    """
    return f"{minute // 60}:{minute % 60:02d}"


def _slots(
    lessons: Sequence[Lesson], starts: int, saved: Mapping[int, int], *, lunch: bool = False
) -> list[TimetableSlot]:
    """Put lessons one after another, with a break before one that would make people sit for too long.

    ``saved`` has the minutes of the exercises that a lesson leaves out, by its number.
    """
    return list(_placed(lessons, starts, saved, lunch=lunch))


def _placed(
    lessons: Sequence[Lesson], starts: int, saved: Mapping[int, int], *, lunch: bool
) -> Iterator[TimetableSlot]:
    now, sat = starts, 0
    for lesson in lessons:
        minutes = _rounded(lesson, lesson.card.exercise_minutes - saved.get(lesson.card.lesson, 0))
        pause = None
        if lunch and now >= NOON:
            pause, lunch = TimetableSlot(now, LUNCH_MIN, "lunch"), False
        elif sat and sat + minutes > SITTING_MIN:
            pause = TimetableSlot(now, BREAK_MIN, "break")
        if pause:
            yield pause
            now, sat = pause.ends, 0
        yield TimetableSlot(now, minutes, f"{lesson.card.number} {lesson.card.question}", lesson)
        now, sat = now + minutes, sat + minutes


def _rounded(lesson: Lesson, exercise_minutes: int) -> int:
    """Return a lesson's minutes in whole steps: it is the exercises that get a little more or less."""
    talk = lesson.card.minutes
    return max(STEP_MIN * round((talk + exercise_minutes) / STEP_MIN), STEP_MIN * math.ceil(talk / STEP_MIN))


def _is_hurried(lesson: Lesson) -> bool:
    """Return whether rounding takes minutes from a lesson that leaves no exercise out."""
    card = lesson.card
    return _rounded(lesson, card.exercise_minutes) < card.minutes + card.exercise_minutes


def _survey(slots: Sequence[TimetableSlot]) -> list[TimetableSlot]:
    return [TimetableSlot(slots[-1].ends, SURVEY_MIN, "the survey")]


def _cut(lesson: Lesson) -> Cut:
    programs = [each for each in lesson.exercises if each.on_ranks]
    always = [each for each in lesson.exercises if each.number in ALWAYS_KEPT]
    keep = always or programs[-KEPT_EXERCISES:] or list(lesson.exercises[:1])
    rest = [each for each in lesson.exercises if each not in keep]
    leave_out = sorted(rest, key=lambda each: (each.on_ranks, each.number))
    share = _share(leave_out) / max(1, _share(lesson.exercises))
    return Cut(lesson, tuple(keep), tuple(leave_out), round(lesson.card.exercise_minutes * share))


def _share(exercises: Sequence[Exercise]) -> int:
    return sum(ON_RANKS if each.on_ranks else OF_A_FUNCTION for each in exercises)
