"""The instructor's notes: a clock that adds up, for any set of lessons, and what is left out first."""

from __future__ import annotations

import msgspec
import nbformat
import pytest

from ppwork.lab.course.instructor import notes
from ppwork.lab.course.lessons import Card, Lesson
from ppwork.lab.course.timetable import (
    BREAK_MIN,
    DAY_ENDS,
    LUNCH_MIN,
    NOON,
    SITTING_MIN,
    cuts,
    one_day,
    two_days,
    wanted,
)


def lesson(number=5, minutes=30, exercise_minutes=10, cells=(), **changes):
    facts = {"lesson": number, "question": "How?", "minutes": minutes, "ranks": 3, "runs_on": ["cpu", "gpu"]}
    card = msgspec.convert({**facts, "exercise_minutes": exercise_minutes, **changes}, Card)
    return Lesson(f"{card.number}-how.ipynb", card, cells)


def exercise(number, title="", *, on_ranks):
    source = f"%%ranks 2 --check {number}\npass" if on_ranks else f'pp.check("{number}", answer)'
    return [nbformat.v4.new_markdown_cell(f"### Exercise: {title}"), nbformat.v4.new_code_cell(source)]


def times(slots):
    return [(slot.starts, slot.minutes) for slot in slots]


def slots_of(lessons):
    """The slots of each half-day of two days."""
    return [slots for day in two_days(lessons) for slots in day.halves.values()]


WHOLE = [lesson(number) for number in range(17)]
SHORT = [lesson(number, exercise_minutes=0) for number in range(17)]
"""Both days have time for them."""


def test_a_half_day_has_a_break_before_a_lesson_that_would_be_too_long_a_sitting():
    (slots,) = slots_of([lesson(0, 20, 0), lesson(1, 30, 10), lesson(2, 5, 0)])
    assert [(slot.what, *slot_times) for slot, slot_times in zip(slots, times(slots), strict=True)] == [
        ("00 How?", 540, 20),
        ("01 How?", 560, 40),
        ("break", 600, BREAK_MIN),
        ("02 How?", 610, 5),
        ("the survey", 615, 10),
    ]


def test_slots_follow_each_other_and_nobody_sits_too_long():
    for slots in [*slots_of(WHOLE), one_day(WHOLE)]:
        assert [slot.starts for slot in slots[1:]] == [slot.ends for slot in slots[:-1]]
        sat = 0
        for slot in slots:
            sat = sat + slot.minutes if slot.lesson else 0
            assert sat <= SITTING_MIN


def test_clock_times_are_rounded_to_five_minutes_and_talk_is_never_cut():
    (slots,) = slots_of([lesson(0, 33, 9), lesson(1, 31, 9), lesson(2, 32, 0)])
    assert times(slots) == [(540, 40), (580, BREAK_MIN), (590, 40), (630, BREAK_MIN), (640, 35), (675, 10)]
    assert [slot.exercise_minutes for slot in slots if slot.lesson] == [7, 9, 3]


def test_of_a_day_that_is_too_long_a_lesson_that_rounding_would_hurry_leaves_exercises_out_too():
    def with_exercises(number, minutes, exercise_minutes):
        cells = [*exercise(f"0{number}.1", on_ranks=False), *exercise(f"0{number}.2", on_ranks=True)]
        return lesson(number, minutes, exercise_minutes, cells)

    (day,) = two_days([with_exercises(5, 140, 45), with_exercises(7, 35, 12)])
    last = day.slots[-2]
    assert (last.lesson.card.lesson, last.exercise_minutes) == (7, 10)
    assert [each.number for each in day.exercises_of(last.lesson)] == ["07.2"]


def test_two_days_have_every_lesson_once_and_the_survey_last():
    days = two_days(SHORT)
    assert [half.title for day in days for half in day.halves] == [
        "Day 1, morning", "Day 1, afternoon", "Day 2, morning", "Day 2, afternoon"
    ]  # fmt: skip
    assert [(day.at_home, day.left_out) for day in days] == [((), ()), ((), ())]
    slots = [slot for own in slots_of(SHORT) for slot in own]
    assert [slot.lesson for slot in slots if slot.lesson] == SHORT
    assert [slot.what for slot in slots].count("the survey") == 1
    assert slots[-1].what == "the survey"


def test_one_day_has_one_lunch_after_noon_and_ends_in_time():
    slots = one_day(WHOLE)
    (lunch,) = [slot for slot in slots if slot.what == "lunch"]
    assert (lunch.starts >= NOON, lunch.minutes) == (True, LUNCH_MIN)
    assert slots[-1].ends <= DAY_ENDS
    numbers = [slot.lesson.card.lesson for slot in slots if slot.lesson]
    assert numbers == sorted(numbers)
    assert 5 < len(numbers) < len(WHOLE)


def test_one_day_holds_all_lessons_when_they_are_few_and_none_when_one_is_too_long():
    few = WHOLE[:3]
    assert [slot.lesson for slot in one_day(few) if slot.lesson] == few
    assert one_day([lesson(0, minutes=1000)]) == []


def test_a_lesson_is_kept_only_with_those_that_it_needs():
    lessons = [
        lesson(0),
        lesson(9, needs="lessons 03, 07 and 11 to 12; two CPU cores"),
        *map(lesson, (3, 7, 11, 12)),
    ]
    order = [each.card.lesson for each in wanted(lessons)]
    assert order.index(9) > max(map(order.index, (3, 7, 11, 12)))
    assert sorted(order) == [0, 3, 7, 9, 11, 12]
    circle = [lesson(4, needs="lesson 05"), lesson(5, needs="lesson 04")]
    assert sorted(each.card.lesson for each in wanted(circle)) == [4, 5]


@pytest.mark.parametrize(
    ("needs", "numbers"),
    [
        ("lesson 00; two CPU cores; no GPU", (0,)),
        ("lessons 00 to 02 (03 is not needed); two CPU cores", (0, 1, 2)),
        ("lessons 01 to 03 and 05; 16 GB", (1, 2, 3, 5)),
        ("lessons 01, 02 and 04", (1, 2, 4)),
        ("you know PyTorch; 10 minutes; no network", ()),
    ],
)
def test_the_lessons_that_a_card_needs_are_read_from_its_sentence(needs, numbers):
    assert lesson(needs=needs).card.needs_lessons == numbers


def test_functions_go_first_then_programs_beyond_two():
    cells = [
        *exercise("05.1", "count", on_ranks=False),
        *exercise("05.2", "swap", on_ranks=True),
        *exercise("05.3", "ring", on_ranks=True),
        *exercise("05.4", "late", on_ranks=True),
    ]
    (cut,) = cuts([lesson(cells=cells, exercise_minutes=14)])
    assert [(each.number, each.title) for each in cut.leave_out] == [("05.1", "count"), ("05.2", "swap")]
    assert [each.number for each in cut.keep] == ["05.3", "05.4"]
    assert cut.minutes == 6


def test_the_capstone_keeps_the_fault_and_the_run_of_ones_own():
    cells = [
        *exercise("14.1", on_ranks=True),
        *exercise("14.2", on_ranks=True),
        *exercise("14.3", on_ranks=False),
        *exercise("14.4", on_ranks=False),
    ]
    (cut,) = cuts([lesson(14, cells=cells)])
    assert [each.number for each in cut.keep] == ["14.3", "14.4"]
    assert [each.number for each in cut.leave_out] == ["14.1", "14.2"]


def test_a_lesson_without_a_program_keeps_its_first_exercise_and_one_with_little_keeps_all():
    functions = [*exercise("05.1", on_ranks=False), *exercise("05.2", on_ranks=False)]
    (cut,) = cuts([lesson(cells=functions)])
    assert [each.number for each in cut.leave_out] == ["05.2"]
    assert cuts([lesson(cells=exercise("05.1", on_ranks=True)), lesson()]) == []


def test_the_notes_have_the_clock_the_goals_and_what_goes_wrong():
    found = notes([lesson(goals=["overlap"], needs="lesson 04", expect=["they guess late"])])
    for words in (
        "| 13:30 to 14:10 | 05 How? | 30 | 10 | 3 |",
        "| 9:00 to 9:40 | 05 How? | 30 | 10 | 3 |",
        "Left out: nothing.",
        "- overlap",
        "Needs: lesson 04.",
        "Expect this to go wrong:\n\n- they guess late",
        "CPU or GPU",
    ):
        assert words in found
    assert "$" not in found
    assert "Pairs for lesson 14" not in found


def test_the_notes_of_the_whole_course_have_the_pairs_what_is_left_out_and_what_ends_late():
    found = notes([*WHOLE[:14], lesson(14, minutes=31, exercise_minutes=17), *WHOLE[15:]])
    assert "Pairs for lesson 14" in found
    assert "(31 minutes on the card, 3 ranks)" in found
    assert "$" not in found
    assert "Left out: lessons 06, " in found
    assert "Homework, so that the day ends at 17:00: lesson 16." in found


def test_a_day_that_ends_late_leaves_exercises_out_then_lessons_and_keeps_an_hour_for_lunch():
    def with_exercises(number, minutes):
        cells = [
            *exercise(f"{number:02d}.1", "count", on_ranks=False),
            *exercise(f"{number:02d}.2", "ring", on_ranks=True),
        ]
        return lesson(number, minutes, 15, cells)

    (day,) = two_days([with_exercises(number, 25) for number in range(9, 17)])
    assert day.ends <= DAY_ENDS
    assert [each.card.lesson for each in day.at_home] == []
    assert [cut.lesson.card.lesson for cut in day.left_out] == [15, 16]
    assert {cut.minutes for cut in day.left_out} == {5}
    morning, afternoon = day.halves.values()
    assert afternoon[0].starts - morning[-1].ends >= LUNCH_MIN

    (day,) = two_days([with_exercises(number, 45) for number in range(9, 17)])
    assert day.ends <= DAY_ENDS
    assert [each.card.lesson for each in day.at_home] == [15, 16]


def test_one_lesson_stays_though_it_is_too_long():
    (day,) = two_days([lesson(8, minutes=900), lesson(9, minutes=900)])
    assert [each.card.lesson for each in day.at_home] == [8]  # nobody needs it here
    assert [slot.what for slots in day.halves.values() for slot in slots] == ["09 How?", "the survey"]
