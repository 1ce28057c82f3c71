"""Exercises of the lesson on groups: each usual mistake gets its own hint."""

from __future__ import annotations

import pytest
from right_answers import group_rank, left_one_out

from ppwork.lab.exercises.check import check


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("02.1", lambda ranks, rank, sort: rank, "begin at 0"),
        ("02.1", lambda ranks, rank, sort: ranks.index(rank) if rank in ranks else None, "has the rank -1"),
        ("02.1", lambda ranks, rank, sort: ranks.index(rank) if rank in ranks else -1, "the default"),
        ("02.1", lambda ranks, rank, sort: group_rank(ranks, rank, True), "your list stays"),
        ("02.4", lambda created: [], "Rank 0 is no member"),
        ("02.4", lambda created: [0], "Nobody left one out"),
        (
            "02.4",
            lambda created: [
                rank for rank in created if len(created[rank]) < max(map(len, created.values()))
            ],
            "look at names, not at lengths",
        ),
        ("02.4", lambda created: [r for r in left_one_out(created) if r < 2], "Rank 2 is no member"),
        (
            "02.4",
            lambda created: left_one_out(created)[: 1 if len(created) == 4 else None],
            "not the same one",
        ),
        (
            "02.4",
            lambda created: left_one_out(created) or [r for r in created if created[r] != created[1]],
            "left nothing out",
        ),
        ("02.4", lambda created: None, "gave None"),
    ],
)
def test_usual_mistake_gets_its_hint(exercise, answer, hint):
    assert hint in check(exercise, answer).hint
