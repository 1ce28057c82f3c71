"""The tree of a broadcast on paper: rounds, and who comes back late with a late rank."""

from __future__ import annotations

import pytest
from legible import assert_legible

from ppwork.errors import PlanError
from ppwork.pictures.trees import tree


@pytest.mark.parametrize(
    ("late", "back"), [(0, "0, 1, 2, 3, 4"), (1, "0, 1, 3"), (2, "0, 2"), (3, "1, 3"), (4, "0, 4")]
)
def test_a_late_rank_holds_its_sender_and_those_behind_it(late, back):
    assert tree(5, late=late).finding.endswith(f"these come back late: {back}.")


def test_table_has_who_sends_to_whom_in_which_round():
    rows = [line.split() for line in str(tree(5).table).splitlines()[2:]]
    assert rows == [["0", "0", "1"], ["1", "0", "2"], ["1", "1", "3"], ["2", "0", "4"]]


@pytest.mark.parametrize(("ranks", "rounds"), [(2, 1), (3, 2), (4, 2), (5, 3), (8, 3), (9, 4)])
def test_rounds_are_log2_rounded_up(ranks, rounds):
    assert f"takes {rounds} rounds" in tree(ranks).finding


@pytest.mark.parametrize("ranks", [2, 5, 9])
def test_text_is_large_enough_and_nowhere_on_top_of_other_text(ranks):
    assert_legible(tree(ranks, late=1).figure)


@pytest.mark.parametrize(("ranks", "late"), [(1, None), (10, None), (5, 5), (5, -1)])
def test_what_cannot_be_drawn_is_refused(ranks, late):
    with pytest.raises(PlanError, match=f"There were {ranks} ranks"):
        tree(ranks, late=late)
