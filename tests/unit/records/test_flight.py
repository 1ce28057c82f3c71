"""torch's flight recorder: real dumps of two gloo ranks, of which one had left a broadcast out."""

from __future__ import annotations

import json

import msgspec
import pytest
from captured_logs import CAPTURED

from ppwork.records.flight import KEPT, Collective, Flight, differences, flight_file, flight_of, read_flights
from ppwork.worker.last_words import write_flight


def captured(rank):
    return (CAPTURED / f"flight-rank{rank}.json").read_bytes()


def test_dump_gives_the_collectives_of_each_group_with_our_names():
    flight = flight_of(1, captured(1))
    assert flight.rank == 1
    assert flight.last() == {
        "world_pg": Collective("world_pg", 1, "barrier", True),
        "mesh_pg": Collective("mesh_pg", 5, "broadcast", True, [[4]]),
    }


def test_ranks_at_different_collectives_are_told():
    (found,) = differences({rank: flight_of(rank, captured(rank)) for rank in (1, 2)})
    assert str(found) == "mesh_pg: rank 1 at broadcast 5, rank 2 at all_reduce 5"
    assert found.behind == ()


def test_rank_with_fewer_collectives_is_behind():
    def at(rank, number):
        return Flight(rank, [Collective("tp_pg", n, "all_reduce", True) for n in range(1, number + 1)])

    (found,) = differences({1: at(1, 7), 2: at(2, 6), 3: at(3, 7)})
    assert found.behind == (2,)
    assert differences({1: at(1, 7), 2: at(2, 7)}) == []


def test_follower_that_posted_broadcasts_ahead_of_the_leader_is_as_usual():
    def at(rank, number, group="mesh_pg"):
        return Flight(rank, [Collective(group, number, "broadcast", False)])

    assert differences({1: at(1, 7), 2: at(2, 9)}) == []
    assert [found.behind for found in differences({1: at(1, 9), 2: at(2, 7)})] == [(2,)]
    assert [found.behind for found in differences({1: at(1, 7, "tp_pg"), 2: at(2, 9, "tp_pg")})] == [(1,)]


def test_only_the_newest_are_kept_and_p2p_is_left_out():
    dump = json.loads(captured(2))
    one = dump["entries"][-1]
    dump["entries"] = [{**one, "collective_seq_id": n} for n in range(1, 3 * KEPT)]
    dump["entries"].append({**one, "is_p2p": True, "collective_seq_id": 999})
    flight = flight_of(2, json.dumps(dump))
    assert [c.number for c in flight.collectives] == list(range(2 * KEPT, 3 * KEPT))
    assert not flight.collectives[0].ended


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"entries": [{}]}', '{"entries": [1]}', "{cut"])
def test_what_is_no_dump_is_refused(text):
    with pytest.raises(ValueError, match="not a dump"):
        flight_of(0, text)


def test_files_that_do_not_read_are_passed_over(tmp_path):
    flight = flight_of(1, captured(1))
    flight_file(tmp_path, 1).write_bytes(msgspec.json.encode(flight))
    flight_file(tmp_path, 2).write_bytes(msgspec.json.encode(flight)[:50])
    assert read_flights(tmp_path, 3) == {1: flight}


def test_rank_without_any_collective_writes_an_empty_record(tmp_path):
    """This process has no group at all; what matters is that nothing raises."""
    assert write_flight(tmp_path, 0) is False
    assert not (tmp_path / "nowhere").exists()
    assert write_flight(tmp_path / "nowhere", 0) is False
