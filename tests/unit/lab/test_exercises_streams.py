"""Exercises of the lesson on streams: each usual mistake gets its own hint."""

from __future__ import annotations

import pytest

from ppwork.lab.exercises.check import check


def waits(same_stream=True, same_buffer=True, writes=lambda a, b: "write" in (a, b)):
    """An answer that looks at streams and buffers, or does not."""

    def answer(first, second):
        apart = first[0] != second[0] or not same_stream
        return apart and (first[1] == second[1] or not same_buffer) and writes(first[2], second[2])

    return answer


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("06.1", waits(writes=lambda a, b: a == "write"), "writes over bytes that the first"),
        ("06.1", waits(writes=lambda a, b: b == "write"), "at least one of them writes"),
        ("06.1", waits(writes=lambda a, b: True), "Both only read"),
        ("06.1", waits(same_stream=False), "One stream runs its work in order"),
        ("06.1", waits(same_buffer=False), "different memory"),
        ("06.1", lambda first, second: None, "gave None"),
        ("06.4", lambda k, slots: k - 1 if k else None, "Its slot is new"),
        ("06.4", lambda k, slots: k - slots, "return None"),
        ("06.4", lambda k, slots: k - slots + 1 if k >= slots else None, "Frames 0 and 1 use the same slot"),
    ],
)
def test_usual_mistake_gets_its_hint(exercise, answer, hint):
    verdict = check(exercise, answer)
    assert not verdict.right
    assert hint in verdict.hint
