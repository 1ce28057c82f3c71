"""The checks of lessons 03 and 07: each usual mistake gets its hint; test_exercises has right ones."""

from __future__ import annotations

import math

import pytest
from right_answers import RIGHT

from ppwork.lab.exercises.check import check
from ppwork.lab.exercises.lesson03 import packed


def counted(actions, **wrong):
    """The right numbers, with a counter's rule replaced."""
    right = RIGHT["03.2"](actions)
    rules = {"call_id": 0, "chunk_index": 1, "cache_epoch": 2}
    for name, rule in wrong.items():
        right = [
            tuple(rule(n) if place == rules[name] else value for place, value in enumerate(ids))
            for n, ids in enumerate(right)
        ]
    return right


def leaves_out(wrong):
    """The right answer to 03.4, but for one rule."""

    def accepts(last, new, action, reset_cache):
        return RIGHT["03.4"](last, new, action, reset_cache) or wrong(last, new, action, reset_cache)

    return accepts


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("03.1", lambda sizes: packed(sizes, start=0, align=64), "are in the frame, too"),
        ("03.1", lambda sizes: packed(sizes, start=64, align=64), "first 2048 bytes"),
        ("03.1", lambda sizes: packed(sizes, start=2048), "multiple of 64"),
        ("03.1", lambda sizes: packed(sizes, start=2048, align=64, go_on=False), "may still fit"),
        ("03.1", lambda sizes: None, "gave None, expected [False]."),
        ("03.2", lambda actions: 3, "three numbers"),
        ("03.2", lambda actions: counted(actions, chunk_index=lambda n: n), "counts INFER only"),
        ("03.2", lambda actions: counted(actions, call_id=lambda n: n + 1), "every action, from 0"),
        ("03.2", lambda actions: counted(actions, cache_epoch=lambda n: 0), "counts cuts"),
        ("03.3", lambda steps: [name for name, _ in steps], "may raise when 'send header' has left"),
        (
            "03.3",
            lambda steps: sorted((name for name, _ in steps), key=lambda name: name.startswith("send")),
            '"sender\'s turn" may raise',
        ),
        ("03.3", lambda steps: ["send header"], "names of all steps"),
        ("03.3", lambda steps: RIGHT["03.3"](steps)[:-2] + RIGHT["03.3"](steps)[:-3:-1], "header first"),
        ("03.4", lambda *case: False, "nothing is wrong"),
        ("03.4", leaves_out(lambda last, new, *_: new[0] > last[0] + 1), "is missing between"),
        (
            "03.4",
            leaves_out(lambda last, new, action, reset: new == (3, 2, 0) and action == "INFER"),
            "even if it was no chunk",
        ),
        ("03.4", leaves_out(lambda last, new, *_: new[0] == last[0]), "has been here before"),
        (
            "03.4",
            lambda last, new, action, reset: new[1] == last[1] + 1 and new[2] == last[2],
            "call, and no chunk",
        ),
        ("03.4", leaves_out(lambda last, new, action, reset: action == "NOOP"), "must not take"),
        (
            "03.4",
            lambda last, new, action, reset: RIGHT["03.4"](last, new, action, reset) and not reset,
            "the plan resets the cache",
        ),
        ("03.4", leaves_out(lambda last, new, action, reset: new[2] > last[2]), "does not reset"),
        (
            "03.4",
            leaves_out(lambda last, new, action, reset: new == (2, 2, 0) and reset and last == (1, 1, 0)),
            "did not go up",
        ),
        ("03.4", leaves_out(lambda last, new, action, reset: new[2] < last[2]), "never does"),
        ("07.1", lambda size: size - 1, "passes it on"),
        ("07.1", lambda size: size, "before the first round"),
        ("07.1", lambda size: 1, "a single rank"),
        ("07.1", math.log2, "round up"),
    ],
)
def test_usual_mistake_gets_its_hint(exercise, answer, hint):
    assert hint in check(exercise, answer).hint
