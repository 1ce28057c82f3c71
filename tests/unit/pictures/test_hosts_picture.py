"""A job over two hosts: who is where, who talks over the cable, and what is lost."""

from __future__ import annotations

import pytest
from drawn_timelines import texts
from legible import assert_legible
from matplotlib.patches import FancyArrowPatch

from ppwork.errors import PlanError
from ppwork.pictures.hosts import hosts

STORE = {"store": "10.77.77.1:29400", "interface": "eth0"}


def arrows(figure):
    return [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]


def test_it_says_where_the_ranks_are_and_draws_both_ways_between_neighbours():
    picture = hosts({"hosta": [0], "hostb": [1, 2]}, **STORE)
    assert picture.finding == (
        "Rank 0 on hosta, ranks 1 and 2 on hostb. At start-up the torchruns meet at the store, "
        "10.77.77.1:29400; every rank writes its address into it and reads the others'; messages go "
        "directly, over eth0 between ranks 0 and 1."
    )
    drawn = {arrow.get_gid() for arrow in arrows(picture.figure)}
    talk, meet = {"0 to 1", "1 to 0", "1 to 2", "2 to 1"}, {"hosta meets", "hostb meets"}
    assert drawn == {"0 asks", "1 asks", "2 asks", *talk, *meet}
    assert {"hosta", "hostb", "store, 10.77.77.1:29400", "the cable: eth0"} <= set(texts(picture.figure))
    assert_legible(picture.figure)


def test_a_lost_way_ends_half_way():
    picture = hosts({"hosta": [0], "hostb": [1]}, **STORE, lost=(1, 0))
    assert picture.finding.endswith("What rank 1 sends to rank 0 is lost.")
    ends = {arrow.get_gid(): arrow.get_path().get_extents() for arrow in arrows(picture.figure)}
    assert ends["1 to 0"].width < 0.6 * ends["0 to 1"].width
    assert "lost" in texts(picture.figure)
    assert_legible(picture.figure)


def test_a_word_that_is_lost_leaves_the_other_way_free():
    picture = hosts({"hosta": [0], "hostb": [1]}, **STORE, lost=(1, 0), says="I am ready")
    assert picture.finding.endswith(
        'is lost: "I am ready". So rank 0 sends no chunk, though its way is free.'
    )
    said = texts(picture.figure)
    assert {'"I am ready"', "way free: no chunk sent"} <= set(said)
    assert "messages of the ranks" not in said
    assert_legible(picture.figure)


@pytest.mark.parametrize(
    ("ranks", "lost"),
    [
        ({"hosta": [0]}, None),
        ({"hosta": [0], "hostb": []}, None),
        ({"hosta": [0], "hostb": [1, 2, 3, 4]}, None),
        ({"hosta": [0], "hostb": [1, 2]}, (1, 2)),
        ({"hosta": [0], "hostb": [1, 2]}, (0, 2)),
        ({"hosta": [0], "hostb": [1, 2]}, (2, 3)),
        ({"hosta": [0], "hostb": [2]}, None),
    ],
)
def test_what_cannot_be_drawn_is_refused(ranks, lost):
    with pytest.raises(PlanError, match="cannot be drawn"):
        hosts(ranks, **STORE, lost=lost)
