"""A group of copies between two threads: who meets whom on the CPU, and on CUDA which stream waits."""

from __future__ import annotations

import threading
from types import SimpleNamespace

import pytest
import torch

from ppwork.errors import PeerTimeoutError
from ppwork.plan import Plan
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope
from ppwork.protocol.topology import Topology
from ppwork.runtime.groups import Groups
from ppwork.runtime.links import P2PReceiver, P2PSender
from ppwork.runtime.messages import Preflight, limits_of
from ppwork.worker import copies
from ppwork.worker.copies import CopyGroup


def bytes_of(value: int) -> torch.Tensor:
    return torch.full((4,), value, dtype=torch.uint8)


# On the CPU


@pytest.mark.parametrize("first", ["send", "recv"])
def test_two_ends_meet_whichever_comes_first(first):
    group, into = CopyGroup(5.0), bytes_of(0)
    begin = {"send": lambda: group.send([bytes_of(7)], 1, 3), "recv": lambda: group.recv([into], 0, 3)}
    halves = [begin.pop(first)(), *(call() for call in begin.values())]
    for half in halves:
        half.wait()
    assert into.tolist() == [7] * 4


def test_a_receive_that_was_posted_ahead_waits_through_messages_of_another_tag():
    group, ahead, frame = CopyGroup(5.0), bytes_of(0), bytes_of(0)
    posted = group.recv([ahead], 0, 9)
    group.send([bytes_of(1)], 1, 0)
    group.recv([frame], 0, 0).wait()
    assert (frame[0], ahead[0], posted.done.is_set()) == (1, 0, False)
    group.send([bytes_of(2)], 1, 9)
    posted.wait()
    assert ahead[0] == 2


def test_messages_of_one_tag_stay_in_order():
    group = CopyGroup(5.0)
    for value in (1, 2, 3):
        group.send([bytes_of(value)], 1, 0)
    got = [bytes_of(0) for _ in range(3)]
    for tensor in got:
        group.recv([tensor], 0, 0).wait()
    assert [int(tensor[0]) for tensor in got] == [1, 2, 3]


def ends(timeout_s):
    plan = Plan(mesh_size=1, one_process=True, chunks=1, timeout_s=timeout_s)
    cpu, handles = torch.device("cpu"), {"down_pg": CopyGroup(timeout_s)}
    groups = [Groups(Topology(1), rank, cpu, timeout_s, None, dict(handles)) for rank in (0, 1)]
    return P2PSender(groups[0], "down_pg"), P2PReceiver(groups[1], "down_pg", plan), plan


def test_the_runtimes_own_ends_carry_a_message_over_it():
    sender, receiver, plan = ends(5.0)
    tensors = {"small": torch.arange(3), "large": torch.arange(5000.0)}
    ids = Ids(0, 0, 0)
    envelope = PPEnvelope(PPAction.INFER, ids, ChunkPlan.of(1), tensors=tensors)
    outgoing = Preflight(limits_of(plan), torch.device("cpu"))(envelope)
    thread = threading.Thread(target=sender.send, args=(outgoing,))
    thread.start()
    received = receiver.receive().message
    thread.join(5.0)
    assert received.ids == ids
    assert all(torch.equal(received.tensors[name], tensor) for name, tensor in tensors.items())


def test_a_peer_that_does_not_come_is_named_within_the_bound():
    _, receiver, _ = ends(1.0)
    with pytest.raises(PeerTimeoutError, match="Timed out waiting") as caught:
        receiver.receive()
    assert caught.value.where == {"rank": 1, "role": "leader", "group": "down_pg", "peer": 0}


# On CUDA, with what records the order of calls in place of a device


class OnDevice:
    """A tensor on a device that notes what is launched, and on which stream."""

    is_cuda, device = True, "cuda:0"

    def __init__(self, notes, name):
        self.notes, self.name = notes, name

    def clone(self):
        self.notes.append(f"{self.notes.stream} copies {self.name}")
        return OnDevice(self.notes, "between")

    def copy_(self, other):
        self.notes.append(f"{self.notes.stream} copies {other.name} to {self.name}")

    def record_stream(self, stream):
        self.notes.append(f"{self.name} is kept until {stream.name} has read it")


class Notes(list):
    stream = "sender's"


@pytest.fixture
def notes(monkeypatch):
    notes = Notes()

    class Event:
        def record(self):
            notes.append(f"{notes.stream} says when")

    def current_stream(device):
        def wait_event(event):
            notes.append(f"{notes.stream} waits")

        return SimpleNamespace(name=notes.stream, wait_event=wait_event)

    cuda = SimpleNamespace(Event=Event, current_stream=current_stream)
    monkeypatch.setattr(copies, "torch", SimpleNamespace(cuda=cuda))
    return notes


def test_on_cuda_the_receivers_stream_waits_for_the_senders_copy_and_the_host_for_nobody(notes):
    group = CopyGroup(5.0)
    group.send([OnDevice(notes, "slot")], 1, 0).wait()  # nobody has received: it does not wait for that
    notes.stream = "receiver's"
    group.recv([OnDevice(notes, "ring")], 0, 0).wait()
    assert notes == [
        "sender's copies slot",
        "sender's says when",
        "receiver's waits",
        "receiver's copies between to ring",
        "between is kept until receiver's has read it",
    ]


def test_on_cuda_a_sender_that_does_not_come_ends_the_receive(notes):
    with pytest.raises(RuntimeError, match="Timed out waiting"):
        CopyGroup(0.2).recv([OnDevice(notes, "ring")], 0, 0)
    assert notes == []
