"""The leader's end on a device, without one: what its main thread issues, and in which order (rule R7)."""

import queue
from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch

from ppwork.errors import LocalProtocolError
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.topology import Role, Topology
from ppwork.runtime import FollowerPlane, LeaderPlane, PPControlPlane
from ppwork.runtime.lanes import Lane
from ppwork.runtime.messages import Incoming

CPU = torch.device("cpu")


class Link:
    """All ends of links at once; what it receives is put into ``coming``."""

    coming: queue.Queue

    def __init__(self, *args):
        pass

    def receive(self):
        return self.coming.get(timeout=10.0)

    def issue(self, raw):
        pass

    def ignored(self, message):
        pass

    pass_on = send = ignored


class Device:
    """The CUDA side of the links; remembers what it was asked to do."""

    def __init__(self):
        self.acts = []

    def receive(self, name, incoming, issue):
        self.acts.append(f"receive {incoming.message.ids.chunk_index}")
        return SimpleNamespace()

    def pass_on(self, arrival, incoming, issue):
        self.acts.append(f"pass on {incoming.message.ids.chunk_index}")

    def complete(self, name, incoming, arrival):
        return incoming.message

    def send(self, name, outgoing, issue):
        self.acts.append(f"send {outgoing.message.ids.chunk_index} after {outgoing.message.stage1_ns} ns")

    @contextmanager
    def computing(self, name, which):
        yield SimpleNamespace(wait=lambda: None, ns=5)


def plane_of(monkeypatch, rank, role, mesh_size=2):
    for end in ("P2PReceiver", "P2PSender", "BroadcastRoot", "BroadcastReceiver"):
        monkeypatch.setattr(f"ppwork.runtime.mesh.{end}", Link)
    monkeypatch.setattr(Link, "coming", queue.Queue(), raising=False)
    groups = SimpleNamespace(rank=rank, role=role, topology=Topology(mesh_size), device=CPU, timeout_s=5.0)
    return PPControlPlane.join(PipelinePlan(mesh_size=mesh_size, in_flight_depth=2), groups=groups)


def incoming(k):
    return Incoming(PPEnvelope(PPAction.INFER, Ids(k, k, 0), ChunkPlan.of(1)), None, [], None, None)


def test_a_computed_result_leaves_before_the_next_chunk_is_handed_out(monkeypatch):
    """Its kernels would else be launched first, and NCCL starts operations in the order of the host."""
    plane = plane_of(monkeypatch, 1, Role.LEADER)
    assert type(plane) is LeaderPlane
    plane.device, plane._lanes["device"] = Device(), Lane("device", CPU)
    for k in range(2):
        Link.coming.put(incoming(k))
    assert plane.receive().ids.chunk_index == 0
    plane.send_result(PPResult(PPAction.INFER, plane.computed(1), 1))
    assert plane.receive().ids.chunk_index == 1
    acts = plane.device.acts
    assert [act for act in acts if not act.startswith("send")] == [
        "receive 0",
        "pass on 0",
        "receive 1",
        "pass on 1",
    ]
    assert "send 0 after 5 ns" in acts


def test_a_follower_sends_no_result(monkeypatch):
    plane = plane_of(monkeypatch, 2, Role.FOLLOWER)
    assert type(plane) is FollowerPlane
    Link.coming.put(incoming(0))
    assert plane.receive().ids == Ids(0, 0, 0)
    with pytest.raises(LocalProtocolError, match="send_result was called on the follower; only leader may"):
        plane.send_result(PPResult(PPAction.INFER, plane.computed(1), 1))
    assert [fill.name for fill in plane.statistics()] == ["mesh_pg", "ready"]
