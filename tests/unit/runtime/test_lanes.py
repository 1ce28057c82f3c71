"""Queues that remember: what a rank says of them at its end, and how the summary reads it."""

import queue

import pytest

from ppwork.records.notes import queues_of
from ppwork.records.run import QUEUE
from ppwork.records.spans import Instant
from ppwork.runtime.lanes import LaneStatistics, WatchedQueue


def test_a_queue_remembers_its_largest_fill_and_what_went_through():
    watched = WatchedQueue(3)
    for item in "abc":
        watched.put(item)
    with pytest.raises(queue.Full):
        watched.put("d", timeout=0.0)
    assert [watched.get(), watched.get()] == ["a", "b"]
    watched.put("e")
    assert watched.statistics("q") == LaneStatistics("q", waiting=2, bound=3, done=2, most=3)


def test_what_ends_a_queue_makes_no_room_when_it_is_taken():
    """Each error or mark raised the bound by one for good."""
    watched = WatchedQueue(1)
    for _ in range(3):
        watched.put_last("end")
        assert watched.get() == "end"
    watched.put("a")
    with pytest.raises(queue.Full):
        watched.put("b", timeout=0.0)


def test_queues_are_read_from_the_instants_of_a_rank():
    fill = {"bound": 4.0, "most": 2.0, "done": 13.0}
    entries = [Instant(QUEUE + "up_pg", "main", 5, figures=fill), Instant("emit", "main", 4, figures=fill)]
    assert queues_of(entries) == [{"name": "up_pg", "bound": 4, "most": 2, "done": 13}]
