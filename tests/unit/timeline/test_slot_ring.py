"""The rings on paper: with all edges nothing is touched too early, each edge has its harm."""

from __future__ import annotations

import pytest

from ppwork.errors import PlanError
from ppwork.runtime.cuda_links import StreamWait
from ppwork.timeline.slot_ring import EDGES, behind, on_paper


def test_edges_are_those_of_the_runtime():
    assert set(EDGES) == set(StreamWait)


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("sides", ["both", "sender", "receiver"])
def test_with_every_wait_no_work_touches_a_slot_too_early(slots, sides):
    paper = on_paper(chunks=6, slots=slots, sides=sides)
    assert paper.torn == []
    edges = {wait.edge for wait in paper.waits}
    assert edges == {"both": set(EDGES), "sender": {"send", "refill"}}.get(sides, {"relay", "take", "reuse"})


@pytest.mark.parametrize("edge", list(EDGES))
def test_each_edge_left_out_is_the_one_that_is_missed(edge):
    assert {wait.edge for wait in on_paper(without=edge).torn} == {edge}


def test_times_of_two_messages_by_hand():
    """Fill 5 ms, transfer 7: with one slot the second fill begins when the first message has been sent."""
    paper = on_paper(chunks=2, slots=1, sides="sender")
    spans = {str(work): (work.start_ms, work.end_ms) for work in paper.works.values()}
    assert spans == {"fill 0": (0, 5), "send 0": (5, 12), "fill 1": (12, 17), "send 1": (17, 24)}


def test_both_halves_of_a_transfer_move_together():
    works = on_paper(without="reuse").works
    for k in range(4):
        assert works["send", k].start_ms == works["receive", k].start_ms


@pytest.mark.parametrize(
    ("edge", "chunk", "slots", "found"),
    [
        ("refill", 2, 2, ("send", 0)),
        ("refill", 1, 2, None),
        ("reuse", 3, 1, ("take", 2)),
        ("send", 0, 2, ("fill", 0)),
    ],
)
def test_a_slot_comes_round_after_as_many_messages_as_there_are_slots(edge, chunk, slots, found):
    assert behind(edge, chunk, slots) == found


@pytest.mark.parametrize(
    "wrong", [{"without": "wait"}, {"without": "take", "sides": "sender"}, {"sides": "mesh"}, {"slots": 0}]
)
def test_what_is_not_there_is_refused(wrong):
    with pytest.raises(PlanError):
        on_paper(**wrong)
