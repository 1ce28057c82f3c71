"""The checks of lessons 03 and 07: each usual mistake gets its hint; test_exercises has right ones."""

from __future__ import annotations

import math

import pytest
from right_answers import RIGHT

from ppwork.lab.exercises.check import check


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("03.2", lambda steps: [name for name, _ in steps], "may raise when 'send header' has left"),
        (
            "03.2",
            lambda steps: sorted((name for name, _ in steps), key=lambda name: name.startswith("send")),
            '"sender\'s turn" may raise',
        ),
        ("03.2", lambda steps: ["send header"], "names of all steps"),
        ("03.2", lambda steps: RIGHT["03.2"](steps)[:-2] + RIGHT["03.2"](steps)[:-3:-1], "header first"),
        ("07.1", lambda size: size - 1, "passes it on"),
        ("07.1", lambda size: size, "before the first round"),
        ("07.1", lambda size: 1, "a single rank"),
        ("07.1", math.log2, "round up"),
    ],
)
def test_usual_mistake_gets_its_hint(exercise, answer, hint):
    assert hint in check(exercise, answer).hint
