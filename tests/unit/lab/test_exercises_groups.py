"""Exercises of the lesson on groups: each usual mistake gets its own hint."""

from __future__ import annotations

import pytest
from right_answers import behind, groups_of, number_of_down

from ppwork.lab.exercises.check import check


@pytest.mark.parametrize(
    ("exercise", "answer", "hint"),
    [
        ("02.1", lambda members, rank: rank, "begin at 0"),
        ("02.1", lambda members, rank: members.index(rank) if rank in members else None, "has the rank -1"),
        ("02.1", lambda members, rank: members.index(rank) if rank in members else -1, "sorts the ranks"),
        (
            "02.2",
            lambda rank, n: ["world_pg", "down_pg", "up_pg", "mesh_pg", "tp_pg"],
            "in no group of the mesh",
        ),
        ("02.2", lambda rank, n: groups_of(rank, n)[:3], "on both sides"),
        ("02.2", lambda rank, n: groups_of(min(rank, 1), n), "no link to rank 0"),
        ("02.2", lambda rank, n: groups_of(rank, n)[1:], "Every rank is in world_pg"),
        ("02.2", lambda rank, n: [*groups_of(rank, n), "pp_pg"], "There is no 'pp_pg'"),
        ("02.2", lambda rank, n: 3, "Return a list"),
        ("02.3", lambda created: created.index("down_pg"), "Number 0 is the default group"),
        ("02.3", len, "created after it does not count"),
        ("02.3", lambda created: 3, "A rank counts its own calls"),
        ("02.3", lambda created: -1, "as this rank creates them"),
        ("02.3", lambda created: number_of_down(created) if created[1:] != ["up_pg"] else True, "gave True"),
        ("02.4", lambda created: [], "Rank 0 is no member"),
        ("02.4", lambda created: [0], "Nobody is behind"),
        ("02.4", lambda created: [r for r in behind(created) if r < 2], "Rank 2 is no member"),
        ("02.4", lambda created: behind(created)[:1], "not the same one"),
        ("02.4", lambda created: [r for r in created if created[r] != created[1]], "left nothing out"),
        ("02.4", lambda created: None, "gave None"),
    ],
)
def test_usual_mistake_gets_its_hint(exercise, answer, hint):
    assert hint in check(exercise, answer).hint
