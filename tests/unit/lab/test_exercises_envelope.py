"""The checks of lessons 03 and 07: each usual mistake gets its hint; test_exercises has right ones."""

from __future__ import annotations

import pytest
from right_answers import RIGHT, sender

from ppwork.lab.exercises.check import check


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("03.3", lambda steps: [step for step in steps if not step.startswith("send")], "Before the first"),
        ("03.3", lambda steps: ["log", "send payload"] if "log" in steps else steps, "ever left waiting"),
        (
            "03.3",
            lambda steps: [s for s in RIGHT["03.3"](steps) if s != "send payload" or "log" in steps],
            "has left",
        ),
        ("03.3", lambda steps: RIGHT["03.3"](steps)[:2], "to the last"),
        ("07.1", lambda size, sleeper: set(range(size)), "no barrier"),
        ("07.1", lambda size, sleeper: {sleeper}, "all its sends"),
        ("07.1", lambda size, sleeper: RIGHT["07.1"](size, sleeper) - {sleeper}, "before it sleeps"),
        ("07.1", lambda size, sleeper: {sleeper, sender(sleeper)}, "every rank that it sends to"),
        ("07.1", lambda size, sleeper: {0, 1, 3}, "Nobody else"),
        ("07.1", lambda size, sleeper: sorted(RIGHT["07.1"](size, sleeper)), "A set"),
    ],
)
def test_usual_mistake_gets_its_hint(exercise, answer, hint):
    assert hint in check(exercise, answer).hint
