"""Calls that met: messages by tag and order, collectives by order, loans to the wait, and stalls."""

from __future__ import annotations

import json

import pytest
from made_calls import FLOATS, MadeCalls
from trace_check import check_trace

from ppwork.records.calls import RECV, SEND, CallPart, read_calls
from ppwork.timeline.call_trace import call_trace
from ppwork.timeline.meetings import Meetings, kind_of

ONE = CallPart(**FLOATS)


@pytest.fixture
def made(tmp_path):
    return MadeCalls(tmp_path, 2)


def met(made: MadeCalls) -> Meetings:
    return Meetings(read_calls(made.folder))


def pairs(made: MadeCalls) -> set[tuple[int, int]]:
    """Lines of each send and its receive."""
    lines = []
    for message in met(made).messages:
        ends = (message.sent, message.received)
        lines.append(tuple(int(end.call.line.rpartition(":")[2]) if end else 0 for end in ends))
    return set(lines)


def by_tags(made: MadeCalls) -> None:
    made.send(0, 1, 0, 1, tag=5, line=1)
    made.send(0, 1, 1, 2, line=2)
    made.send(0, 1, 2, 3, line=3)
    made.recv(1, 0, 0, 4, line=11)
    made.recv(1, 0, 4, 5, tag=5, line=12)
    made.recv(1, 0, 5, 6, line=13)


def test_messages_meet_by_tag_and_order(made):
    by_tags(made)
    assert pairs(made) == {(1, 12), (2, 11), (3, 13)}


def test_nccl_has_no_tags(tmp_path):
    made = MadeCalls(tmp_path, 2, backend="nccl")
    by_tags(made)
    assert pairs(made) == {(1, 11), (2, 12), (3, 13)}


def test_a_receive_from_anybody_meets_who_it_was(made):
    made.send(0, 1, 0, 1, line=1)
    made.recv(1, -1, 0, 2, came_from=0, line=11)
    assert pairs(made) == {(1, 11)}


def test_messages_of_two_groups_do_not_meet(made):
    made.send(0, 1, 0, 1, line=1)
    made.recv(1, 0, 0, None, group="group 1", line=11)
    assert pairs(made) == {(1, 0), (0, 11)}


def test_a_buffer_is_lent_until_its_own_handle_was_waited_for(made):
    both = (CallPart(SEND, 1, **FLOATS), CallPart(RECV, 1, **FLOATS))
    batch = made.call(0, "batch_isend_irecv", 0, 1, *both, lent=True)
    made.wait(0, batch, 3, 4, part=1)
    made.wait(0, batch, 5, 9, part=0)
    forgotten = made.send(0, 1, 9, 10, name="isend", lent=True)
    loans = {(loan.call.begun.number, loan.part): loan.end_ns for loan in met(made).loans}
    assert loans == {(batch, 0): 9_000_000, (batch, 1): 4_000_000, (forgotten, -1): None}


@pytest.mark.parametrize(("backend", "ends"), [("gloo", 30_000_000), ("nccl", None)])
def test_a_message_whose_handle_was_let_go_is_given_up_on_gloo_alone(tmp_path, backend, ends):
    made = MadeCalls(tmp_path, 2, backend=backend)
    sent = made.send(0, 1, 9, 10, name="isend", lent=True)
    made.drop(0, sent, 30)
    summed = made.call(0, "all_reduce", 40, 41, CallPart(**FLOATS), lent=True)
    made.drop(0, summed, 42)
    loans = {loan.call.begun.number: loan.end_ns for loan in met(made).loans}
    assert loans == {sent: ends, summed: None}


def stalls(made: MadeCalls) -> list[tuple[int, str, int, float]]:
    return [(s.call.rank, s.call.name, s.awaited.rank, s.ns / 1e6) for s in met(made).stalls]


def test_a_rank_stood_until_the_other_end_was_called(made):
    made.recv(1, 0, 0, 31)
    made.send(0, 1, 30, 31)
    made.send(0, 1, 40, 61)
    made.recv(1, 0, 60, 61)
    assert stalls(made) == [(1, "recv", 0, 30.0), (0, "send", 1, 20.0)]


def test_a_send_that_went_on_without_its_receiver_stood_for_nobody(made):
    made.send(0, 1, 0, 5)
    made.recv(1, 0, 50, 51)
    assert stalls(made) == []


def test_with_a_handle_a_rank_stands_in_the_wait_and_not_before(made):
    handle = made.recv(1, 0, 0, 1, name="irecv", lent=True)
    made.wait(1, handle, 20, 31)
    made.send(0, 1, 30, 31)
    assert stalls(made) == [(1, "wait", 0, 10.0)]


def test_the_last_rank_of_a_collective_is_who_the_others_stood_for(tmp_path):
    made = MadeCalls(tmp_path, 3)
    for rank, start in enumerate((0, 40, 10)):
        made.call(rank, "all_reduce", start, 41, ONE)
    made.call(0, "barrier", 50, None)
    first, second = met(made).meetings
    assert (first.last, first.missing) == (1, ())
    assert (second.number, second.missing) == (2, (1, 2))
    assert stalls(made) == [(0, "all_reduce", 1, 40.0), (2, "all_reduce", 1, 30.0)]


@pytest.mark.parametrize("error", ["TypeError: no tensor", "LocalProtocolError: on the default group"])
def test_a_call_that_torch_or_a_guard_refused_met_nobody(made, error):
    made.call(0, "all_reduce", 0, 1, error=error)
    made.call(0, "all_reduce", 2, 3, ONE, line=7)
    made.call(1, "all_reduce", 2, 3, ONE, line=7)
    (meeting,) = met(made).meetings
    assert {end.call.line for end in meeting.ends.values()} == {"prog.py:7"}


def test_ranks_that_start_one_after_the_other_stood_for_nobody(made):
    made.call(0, "init_process_group", 0, 901, group="")
    made.call(1, "init_process_group", 900, 901, group="")
    assert [meeting.members for meeting in met(made).meetings] == [(0, 1)]
    assert stalls(made) == []


def test_a_trace_has_calls_loans_and_an_arrow_for_each_message(made):
    handle = made.send(0, 1, 5, 6, name="isend", lent=True)
    made.wait(0, handle, 7, 8)
    made.recv(1, 0, 4, 9)
    made.recv(1, 0, 9, None)
    trace = call_trace(met(made))
    check_trace(trace)
    events = json.loads(trace)["traceEvents"]
    slices = {(e["name"], e["cat"]): e for e in events if e["ph"] == "X"}
    assert set(slices) == {("isend", "call"), ("isend", "loan"), ("wait", "call"), ("recv", "call")}
    assert slices["isend", "loan"]["dur"] == 3000
    assert slices["recv", "call"]["args"]["came back"] == "never"
    (leaves,) = [e for e in events if e["ph"] == "s"]
    (comes,) = [e for e in events if e["ph"] == "f"]
    assert (leaves["ts"], comes["ts"]) == (5000.0, pytest.approx(9000.0, abs=0.01))
    assert leaves["id"] == comes["id"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("all_gather_into_tensor", "all_gather_single"),
        ("all_gather_tensor", "all_gather_single"),
        ("reduce_scatter_tensor", "reduce_scatter_single"),
        ("_c10d_functional::reduce_scatter_tensor_coalesced", "reduce_scatter_single_coalesced"),
    ],
)
def test_ranks_of_two_torches_meet_in_one_collective(old, new):
    """They call it by the names of their versions; a list of tensors is another collective."""
    assert kind_of(old) == kind_of(new) != kind_of("all_gather")
