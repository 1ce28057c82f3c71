"""Exercises of the lesson on groups: each usual mistake gets its own hint."""

from __future__ import annotations

import pytest
from right_answers import first_difference, group_rank

from ppwork.lab.exercises.check import check


def as_the_first_rank(created):
    for position, names in enumerate(zip(*created.values(), strict=False)):
        others = [rank for rank, name in zip(created, names, strict=True) if name != names[0]]
        if others:
            return position, others
    return None


def until_the_shortest_ends(created):
    found = first_difference(created)
    return found if found and found[0] < min(map(len, created.values())) else None


def only_one(found):
    return found and (found[0], found[1][:1])


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("02.1", lambda ranks, rank, sort: rank, "begin at 0"),
        ("02.1", lambda ranks, rank, sort: ranks.index(rank) if rank in ranks else None, "has the rank -1"),
        ("02.1", lambda ranks, rank, sort: ranks.index(rank) if rank in ranks else -1, "the default"),
        ("02.1", lambda ranks, rank, sort: group_rank(ranks, rank, True), "your list stays"),
        ("02.4", as_the_first_rank, "not always in the majority"),
        ("02.4", lambda created: first_difference(created) or (0, []), "the same"),
        ("02.4", until_the_shortest_ends, "the end of the shortest"),
        (
            "02.4",
            lambda created: None if len({*map(len, created.values())}) == 1 else first_difference(created),
            "as long as the others",
        ),
        ("02.4", lambda created: only_one(first_difference(created)), "each in its own way"),
        (
            "02.4",
            lambda created: None if "test" in created[0] else first_difference(created),
            "one group more",
        ),
        ("02.4", lambda created: None, "gave None"),
    ],
)
def test_usual_mistake_gets_its_hint(exercise, answer, hint):
    assert hint in check(exercise, answer).hint
