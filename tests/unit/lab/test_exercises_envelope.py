"""The checks of lessons 03 and 07: each usual mistake gets its hint; test_exercises has right ones."""

from __future__ import annotations

import math

import pytest
from right_answers import RIGHT

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
        ("07.1", lambda size: size - 1, "passes it on"),
        ("07.1", lambda size: size, "before the first round"),
        ("07.1", lambda size: 1, "a single rank"),
        ("07.1", math.log2, "round up"),
    ],
)
def test_usual_mistake_gets_its_hint(exercise, answer, hint):
    assert hint in check(exercise, answer).hint
