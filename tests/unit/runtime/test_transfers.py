"""Which transfers a message is made of: both ends know each size before it comes, whatever comes.

gloo takes a receive that is too long for its message without a word, so sizes are held against each other
here, on links without a backend; ``tests/multiproc/runtime/test_links.py`` sends such streams through gloo.
"""

from __future__ import annotations

from collections import defaultdict, deque
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ppwork.protocol import wire
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, Reason
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.topology import Topology
from ppwork.runtime.links import BroadcastReceiver, BroadcastRoot, P2PReceiver, P2PSender
from ppwork.runtime.messages import Preflight, limits_of

PLAN = PipelinePlan(mesh_size=2)
CPU = torch.device("cpu")
SIZES = {"rides": [40], "small": [2_500], "two": [3_000, 2_000], "mixed": [7_000, 3_000], "large": [30_000]}
"""Floats of each tensor: inside the frame, or behind it alone, together, or both."""


@pytest.fixture(autouse=True, scope="module")
def _a_tenth():
    """Have a tenth of all sizes, so that many streams take seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wire, "JOIN_BYTES", wire.JOIN_BYTES // 10)
        yield


class Wire:
    """What has been sent, and receives that wait for it, by tag and in their order; sizes must be alike."""

    def __init__(self):
        self.sent, self.posted, self.transfers = defaultdict(deque), defaultdict(deque), 0

    def send(self, part, tag=0):
        self.sent[tag].append(part.clone())
        self.transfers += 1
        return SimpleNamespace(wait=lambda: None)

    def receive(self, part, tag=0):
        receive = SimpleNamespace(part=part, came=False)
        self.posted[tag].append(receive)

        def wait():
            while not receive.came:
                first, sent = self.posted[tag].popleft(), self.sent[tag].popleft()
                assert sent.numel() == first.part.numel(), (sent.numel(), first.part.numel())
                first.part.copy_(sent)
                first.came = True

        receive.wait = wait
        return receive


def groups_of(rank):
    topology = Topology(2)
    groups = {"down_pg": None, "mesh_pg": None}

    class Groups(SimpleNamespace):
        def __getitem__(self, name):
            return groups[name]

    return Groups(rank=rank, role=topology.role(rank), topology=topology)


class Pipeline:
    """Rank 0, the leader and one follower, whose links end in wires."""

    def __init__(self):
        self.down, self.mesh = Wire(), Wire()
        self.preflight = Preflight(limits_of(PLAN), CPU)
        self.sender, self.receiver = (
            P2PSender(groups_of(0), "down_pg"),
            P2PReceiver(groups_of(1), "down_pg", PLAN),
        )
        self.root, self.follower = BroadcastRoot(groups_of(1)), BroadcastReceiver(groups_of(2), PLAN)
        self.sender.start, self.receiver.start = self.down.send, self.down.receive
        self.root.start, self.follower.start = self.mesh.send, self.mesh.receive
        self.index = 0

    def message(self, what):
        """Return one message of a stream, each chunk with values of its own."""
        ids = Ids(self.index, self.index, 0)
        self.index += 1
        if what in SIZES:
            tensors = {f"t{i}": torch.full((n,), float(self.index + i)) for i, n in enumerate(SIZES[what])}
            return PPEnvelope(PPAction.INFER, ids, ChunkPlan.of(1), {}, tensors)
        if what == "another":
            tensors = {f"{self.index}": torch.full((2_500,), float(self.index))}
            return PPEnvelope(PPAction.INFER, ids, ChunkPlan.of(1), {}, tensors)
        if what == "long":
            return PPEnvelope(PPAction.NOOP, ids, None, {"text": "x" * 9_000})
        return PPEnvelope(PPAction[what], ids, reason=Reason("E", "end", {}, "") if what == "ERROR" else None)

    def take(self, what):
        """Send one message to the follower, or the leader's word, and return what is there."""
        if what == "BEGIN":
            self.root.begin(PLAN.frame_bytes)
            assert self.follower.receive() is None
            return None
        message = self.message(what)
        self.sender.send(self.preflight(message))
        self.root.pass_on(incoming := self.receiver.receive())
        came = self.follower.receive()
        for there in (incoming.message, came.message):
            assert (there.ids, there.action, there.metadata) == (
                message.ids,
                message.action,
                message.metadata,
            )
            assert there.tensors.keys() == message.tensors.keys()
            assert all(torch.equal(there.tensors[name], t) for name, t in message.tensors.items())
        return incoming.message.tensors, came.message.tensors, message.tensors


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([*SIZES, "another", "NOOP", "long", "BEGIN"]), max_size=25),
    st.sampled_from(["SHUTDOWN", "ERROR"]),
)
def test_in_any_stream_both_ends_know_each_size_and_nothing_is_written_over(stream, end):
    pipeline = Pipeline()
    kept = [taken for what in stream if (taken := pipeline.take(what)) is not None]
    pipeline.take(end)
    for *there, sent in kept:
        assert all(torch.equal(tensors[name], t) for tensors in there for name, t in sent.items())
    assert not any(pipeline.down.sent.values())
    assert not any(pipeline.mesh.sent.values())


def test_a_message_is_its_frame_and_one_transfer_and_what_was_expected_in_its_place_passes_unread():
    pipeline, transfers = Pipeline(), []
    for what in ("two", "two", "two", "large", "SHUTDOWN"):
        before = pipeline.down.transfers, pipeline.mesh.transfers
        pipeline.take(what)
        transfers.append((pipeline.down.transfers - before[0], pipeline.mesh.transfers - before[1]))
    assert transfers == [(2, 2), (2, 2), (2, 2), (2, 3), (1, 1)]
