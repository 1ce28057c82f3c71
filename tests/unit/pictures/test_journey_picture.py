"""The way of a chunk: every rank of the mesh at its place, of a large one the first and the last."""

from __future__ import annotations

import pytest
from matplotlib.text import Text

import ppwork as pp
from ppwork.pictures.journey import journey
from ppwork.protocol.topology import Topology


def names(figure):
    words = [text.get_text().split(",")[0] for text in figure.findobj(Text)]
    return [word for word in words if word.startswith("rank ")]


@pytest.mark.parametrize(
    ("mesh_size", "drawn"), [(1, ["rank 0", "rank 1"]), (3, [f"rank {n}" for n in range(4)])]
)
def test_every_rank_of_a_small_mesh_is_drawn(mesh_size, drawn):
    assert names(journey(Topology(mesh_size)).figure) == drawn


def test_of_a_large_mesh_the_last_rank_stands_for_those_between():
    figure = journey(Topology(8)).figure
    assert names(figure) == ["rank 0", "rank 1", "rank 2", "rank 3", "rank 8"]
    assert "…" in [text.get_text() for text in figure.findobj(Text)]


def test_the_sentence_says_who_broadcasts_and_who_generates():
    assert "broadcasts it to the rest of the mesh; ranks 1 and 2 generate" in journey(pp.Plan()).finding
    alone = journey(Topology(1))
    assert "the leader, rank 1 generates" in alone.finding
    assert "broadcast" not in str(alone.table)
