"""The function of the lesson on hangs: each usual mistake gets its own hint."""

from __future__ import annotations

import pytest

from ppwork.lab.exercises.check import check


def one_step(waits, start):
    return waits[start][0] if waits[start] else start


def back_to_the_start(waits, start):
    rank, begun = start, False
    for _ in range(10):
        if not waits[rank]:
            return rank
        if begun and rank == start:
            return None
        rank, begun = min(waits[rank]), True
    return rank


def first_of_several(waits, start):
    met = []
    while waits[start] and start not in met:
        met.append(start)
        start = waits[start][0]
    return None if waits[start] else start


def lowest_only(waits, start):
    met = set()
    while waits[start]:
        if start in met:
            return None
        met.add(start)
        start = min(waits[start])
    return start


def first_free(waits, start):
    return next((rank for rank, others in waits.items() if not others), None)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (one_step, "go on until a rank waits for nobody"),
        (back_to_the_start, "note the ranks that you have met"),
        (first_free, "follow the"),
        (first_of_several, "name the lowest"),
        (lowest_only, "follow every arrow"),
    ],
)
def test_usual_mistake_gets_its_hint(answer, hint):
    verdict = check("09.4", answer)
    assert not verdict.right
    assert hint in verdict.hint
