"""Exercises of the lesson on messages: each usual mistake gets its own hint."""

from __future__ import annotations

import pytest

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


def a_set_of_lent_buffers(steps):
    """A buffer that was sent twice comes back with the first ``wait``."""
    lent = set()
    for number, (what, buffer) in enumerate(steps):
        if what == "write" and buffer in lent:
            return number
        (lent.add if what == "isend" else lent.discard)(buffer)
    return None


def test_what_steps_come_to_is_not_all_the_same():
    assert [touch_in_flight(steps) for steps in TOUCHED.values()] == [1, None, None, 4, 4, 3]


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("01.1", lambda steps: None, "from `isend` until `wait`"),
        ("01.1", any_write, "After its `wait` the buffer is yours"),
        ("01.1", lambda steps: any_write(steps) if steps[1][0] != "wait" else None, "Another buffer"),
        ("01.1", never_given_back, "After its `wait` the buffer is yours"),
        ("01.1", one_wait_for_all, "a `wait` of its own"),
        ("01.1", lent_once, "lends it a second time"),
        ("01.1", a_set_of_lent_buffers, "Sent twice, it is lent twice"),
        ("01.1", lambda steps: True, "gave True, expected 1"),
    ],
)  # fmt: skip
def test_usual_mistake_gets_its_hint(exercise, answer, hint):
    assert hint in check(exercise, answer).hint
