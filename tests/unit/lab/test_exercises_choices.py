"""The function of the lesson on the simulator: each usual mistake gets its own hint."""

from __future__ import annotations

import pytest
from right_answers import mesh_and_depth

from ppwork.lab.exercises.check import check
from ppwork.lab.exercises.lesson12 import COSTS_MS, played, smallest


def no_transport(encode, decode, generate, round_of_sums, hop, target):
    return mesh_and_depth(encode, decode, generate, round_of_sums, 0.0, target)


def no_sums(encode, decode, generate, round_of_sums, hop, target):
    return mesh_and_depth(encode, decode, generate, 0.0, hop, target)


def one_deeper(*costs):
    right = mesh_and_depth(*costs)
    return right and (right[0], min(4, right[1] + 1))


def mesh_alone(encode, decode, generate, round_of_sums, hop, target):
    return mesh_and_depth(0.0, 0.0, generate, round_of_sums, hop, target)


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (lambda *costs: (8, 3), "A smaller mesh is enough"),
        (one_deeper, "A smaller depth on that mesh is enough"),
        (lambda *costs: None, "A mesh of some size reaches it"),
        (lambda *costs: (3, 2), "on rank 0, and no mesh makes them shorter"),
        (no_sums, "its sums included"),
        (no_transport, "chunks share that time"),
        (mesh_alone, "on rank 0, and no mesh makes them shorter"),
        (lambda *costs: 3, "Return a pair"),
        (lambda *costs: (9, 1), "1 to 8 and 1 to 4"),
    ],
)
def test_usual_mistake_gets_its_hint(answer, hint):
    verdict = check("12.1", answer)
    assert not verdict.right
    assert hint in verdict.hint


def test_no_case_is_decided_by_a_hair():
    """The law, a simulator of one's own and the library's may differ by little: the answer must not."""
    for costs in COSTS_MS:
        right, target = smallest(costs), costs[-1]
        assert {smallest((*costs[:-1], near * target)) for near in (0.99, 1.01)} == {right}
        if right is not None:
            assert played(costs, *right).period_ms < target
