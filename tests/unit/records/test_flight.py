"""torch's flight recorder: real dumps of two gloo ranks, of which one had left a broadcast out."""

from __future__ import annotations

import json
import threading

import msgspec
import pytest
import torch  # noqa: F401  a rank that writes its flight record has it imported
from captured_logs import CAPTURED
from torch._C import _distributed_c10d as c10d

from ppwork.diagnosis.flights import differences
from ppwork.records.flight import KEPT, Collective, Flight, flight_file, flight_of, read_flight
from ppwork.worker import last_words
from ppwork.worker.last_words import write_flight


def captured(rank):
    return (CAPTURED / f"flight-rank{rank}.json").read_bytes()


def test_dump_gives_the_collectives_of_each_group_with_our_names():
    flight = flight_of(1, captured(1))
    assert flight.rank == 1
    assert flight.at() == {
        "world_pg": Collective("world_pg", 1, "barrier", True),
        "mesh_pg": Collective("mesh_pg", 5, "broadcast", True, [[4]]),
    }


def test_ranks_at_different_collectives_are_told():
    (found,) = differences({rank: flight_of(rank, captured(rank)) for rank in (1, 2)})
    assert str(found) == "mesh_pg: rank 1 at collective 5 (broadcast), rank 2 at collective 5 (all_reduce)"
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


def of_nccl(*collectives):
    """A dump as NCCL's recorder makes it: it knows the state of a work, and retires an ended one later."""
    (one, *_) = json.loads(captured(1))["entries"]
    entries = [
        {
            **one,
            "process_group": [group, "undefined"],
            "collective_seq_id": number,
            "profiling_name": f"nccl:{kind}",
            "state": state,
            "retired": False,
        }
        for group, number, kind, state in collectives
    ]
    messages = [
        {**one, "process_group": ["3", "undefined"], "profiling_name": "nccl:send 0->1", "is_p2p": True}
    ]
    return json.dumps({"nccl_version": "2.28.9", "entries": entries + messages})


def test_nccl_counts_beside_gloo_and_a_rank_is_at_the_first_that_has_not_ended():
    """The host runs ahead of the device: what it issued last says nothing."""
    waiting = of_nccl(
        *(("2", n, "all_reduce", state) for n, state in ((6, "completed"), (7, "started"), (8, "scheduled")))
    )
    behind = of_nccl(("2", 5, "all_reduce", "completed"), ("2", 6, "all_reduce", "completed"))
    first, second = flight_of(1, captured(1), waiting), flight_of(2, captured(1), behind)
    assert first.at()["mesh_pg"].number == 5
    assert first.at()["tp_pg (nccl)"].number == 7
    (found,) = differences({1: first, 2: second})
    counts = "rank 1 at collective 7 (all_reduce), rank 2 at collective 6 (all_reduce)"
    assert str(found) == f"tp_pg (nccl): {counts}; behind: rank 2"
    assert found.behind == (2,)
    assert differences({1: first, 2: flight_of(2, captured(1), waiting)}) == []


def test_a_failing_rank_writes_both_records_as_one(tmp_path, monkeypatch):
    nccl = of_nccl(("2", 7, "all_reduce", "started")).encode()
    monkeypatch.setattr(c10d, "_dump_fr_trace_json", lambda: captured(1))
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", lambda: nccl, raising=False)
    assert write_flight(tmp_path, 1)
    assert set(read_flight(tmp_path, 1).at()) == {"world_pg", "mesh_pg", "tp_pg (nccl)"}


def test_a_device_that_does_not_answer_holds_no_failing_rank(tmp_path, monkeypatch):
    let_go = threading.Event()
    monkeypatch.setattr(last_words, "FLIGHT_S", 0.5)
    monkeypatch.setattr(c10d, "_dump_fr_trace_json", lambda: captured(1))
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", lambda: let_go.wait(30.0) and b"", raising=False)
    assert write_flight(tmp_path, 1) is True
    assert set(read_flight(tmp_path, 1).at()) == {"world_pg", "mesh_pg"}
    let_go.set()


def test_a_device_that_failed_costs_the_half_of_nccl_alone(tmp_path, monkeypatch):
    def failed():
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(c10d, "_dump_fr_trace_json", lambda: captured(1))
    monkeypatch.setattr(c10d, "_dump_nccl_trace_json", failed, raising=False)
    assert write_flight(tmp_path, 1) is True
    assert set(read_flight(tmp_path, 1).at()) == {"world_pg", "mesh_pg"}


def test_only_the_newest_are_kept_and_p2p_is_left_out():
    dump = json.loads(captured(2))
    one = dump["entries"][-1]
    one["retired"] = True
    dump["entries"] = [{**one, "collective_seq_id": n} for n in range(1, 3 * KEPT)]
    dump["entries"].append({**one, "is_p2p": True, "collective_seq_id": 999})
    flight = flight_of(2, json.dumps(dump))
    assert [c.number for c in flight.collectives] == list(range(2 * KEPT, 3 * KEPT))


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"entries": [{}]}', '{"entries": [1]}', "{cut"])
def test_what_is_no_dump_is_refused(text):
    with pytest.raises(ValueError, match="not a dump"):
        flight_of(0, text)


def test_files_that_do_not_read_are_passed_over(tmp_path):
    flight = flight_of(1, captured(1))
    flight_file(tmp_path, 1).write_bytes(msgspec.json.encode(flight))
    flight_file(tmp_path, 2).write_bytes(msgspec.json.encode(flight)[:50])
    assert [read_flight(tmp_path, rank) for rank in range(3)] == [None, flight, None]


def test_rank_without_any_collective_writes_an_empty_record(tmp_path, monkeypatch):
    """The recorder is the process's, and another test of this process may have made a collective."""
    monkeypatch.setattr(c10d, "_dump_fr_trace_json", lambda: b'{"entries": []}')
    assert write_flight(tmp_path, 0) is False
    assert not (tmp_path / "nowhere").exists()
    assert write_flight(tmp_path / "nowhere", 0) is False
