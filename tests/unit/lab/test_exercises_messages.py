"""Exercises of the lesson on messages: each usual mistake gets its own hint."""

from __future__ import annotations

import pytest
from right_answers import back_early, buffers_needed

from ppwork.lab.exercises.check import check
from ppwork.lab.exercises.lesson01 import TOUCHED, touch_in_flight


def never_given_back(steps):
    """``wait`` is not looked at."""
    sent = set()
    for number, (what, buffer) in enumerate(steps):
        if what == "isend":
            sent.add(buffer)
        if what == "write" and buffer in sent:
            return number
    return None


def any_write(steps):
    return next((n for n, (what, _) in enumerate(steps) if what == "write"), None)


def one_wait_for_all(steps):
    lent = set()
    for number, (what, buffer) in enumerate(steps):
        if what == "isend":
            lent.add(buffer)
        if what == "wait":
            lent.clear()
        if what == "write" and buffer in lent:
            return number
    return None


def lent_once(steps):
    """A buffer that came back is never lent again."""
    back = set()
    for number, (what, buffer) in enumerate(steps):
        if what == "wait":
            back.add(buffer)
        if what == "write" and buffer not in back and ("isend", buffer) in steps[:number]:
            return number
    return None


def test_what_steps_come_to_is_not_all_the_same():
    assert [touch_in_flight(steps) for steps in TOUCHED.values()] == [1, None, None, 4, 4]


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("01.1", lambda backend, call: True, "a send of any size waits"),
        ("01.1", lambda backend, call: False, "it is `wait` that waits"),
        ("01.1", lambda backend, call: call == "isend", "into a CUDA stream"),
        ("01.1", lambda backend, call: back_early(backend, call) and (backend, call) != ("nccl", "isend"),
         "`isend` does not either"),
        ("01.1", lambda backend, call: None, "gave None"),
        ("01.2", lambda steps: None, "from `isend` until `wait`"),
        ("01.2", any_write, "After its `wait` the buffer is yours"),
        ("01.2", lambda steps: any_write(steps) if steps[1][0] != "wait" else None, "Another buffer"),
        ("01.2", never_given_back, "After its `wait` the buffer is yours"),
        ("01.2", one_wait_for_all, "a `wait` of its own"),
        ("01.2", lent_once, "lends it a second time"),
        ("01.2", lambda steps: True, "gave True, expected 1"),
        ("01.3", lambda calls: calls.count("isend"), "Not every message needs one"),
        ("01.3", lambda calls: 1, "the second overwrites the first"),
        ("01.3", lambda calls: max(2, buffers_needed(calls)), "the same buffer does for both"),
        ("01.3", lambda calls: min(2, buffers_needed(calls)), "the newest one too"),
        ("01.4", lambda first, second: first == second, "has nobody who receives it"),
        ("01.4", lambda first, second: False, "nobody receives"),
        ("01.4", lambda first, second: True, "meets its receive"),
        ("01.4", lambda first, second: first[0] == second[0] == "send", "nobody sends"),
        ("01.4", lambda first, second: first[0] == second[0] or len(first) != len(second), "the third ones"),
    ],
)  # fmt: skip
def test_usual_mistake_gets_its_hint(exercise, answer, hint):
    assert hint in check(exercise, answer).hint
