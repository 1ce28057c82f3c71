"""The last exercise of the lesson on the simulator: a prediction beside what was measured."""

from __future__ import annotations

import pytest

from ppwork.lab.exercises.lesson12 import hints_of_own


@pytest.mark.parametrize(
    ("printed", "hint"),
    [
        ("period 46.0 ms; depth and costs 2 10 40 30 predicted 44.4", ""),
        ("period 46.0 ms; depth and costs 2 20 40 20 predicted 80.0", "both ranks work at once"),
        ("period 68.1 ms; depth and costs 2 40 60 20 predicted 60.0", "Play it"),  # the law, without jitter
        ("period 68.1 ms; depth and costs 2 40 60 20 predicted 66.9", ""),
        ("period 64.5 ms; depth and costs 2 25 60 25 predicted 60.0", "as near"),  # the law, and near enough
        ("period 64.5 ms; depth and costs 2 25 60 25 predicted 62.2", ""),
        ("period 46.0 ms; depth and costs 2 12.5 40.0 27.5 predicted 44.4", ""),
        ("period 52.0 ms; depth and costs 2 20 50 20 predicted 51.2", "cannot tell"),  # the law says 50
        ("period 34.7 ms; depth and costs 2 15 30 15 predicted 33.3", "take some of your own"),
        ("period 34.7 ms; depth and costs 3 10 30 15 predicted 33.3", "costs at depth 2"),
    ],
)
def test_prediction_and_its_hint(printed, hint):
    said = next(hints_of_own(printed), "")
    assert hint in said
    assert bool(said) == bool(hint)
