"""The mesh's ends on a device, without one: what a main thread issues, and in which order (R5, R7)."""

import queue
import threading
from contextlib import contextmanager
from itertools import islice
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import torch
from launch_order import STAGE1, TRANSFER, Deadlock, ends, mesh_device, stage0_device
from waiting import wait_for

from ppwork.errors import (
    LocalProtocolError,
    PeerTimeoutError,
    RemoteProtocolError,
    StageError,
    StuckError,
    TerminalNotice,
)
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult, Reason
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.topology import Topology
from ppwork.records.spans import Recorder
from ppwork.runtime import FollowerPlane, LeaderPlane, PPControlPlane
from ppwork.runtime.mesh import AT_ONCE_BYTES
from ppwork.runtime.messages import Incoming
from ppwork.runtime.plane import Timed

CPU = torch.device("cpu")
OVER = "the test is over"
MESH_ENDS = ("P2PReceiver", "P2PSender", "BroadcastRoot", "BroadcastReceiver")
BEGIN = None
"""What a follower's link returns for the leader's word."""


class Link:
    """All ends of links at once: ``coming`` is what it receives, ``heard`` what the mesh was told."""

    coming: queue.Queue
    heard: list

    def __init__(self, *args):
        # Its plane's own: the lanes of one that was made before go on reading theirs.
        self.coming, self.heard = Link.coming, Link.heard

    def receive(self):
        item = self.coming.get(timeout=10.0)
        if item is OVER:
            raise RuntimeError("the test is over")
        return item

    def pass_on(self, incoming):
        self.heard.append(incoming)

    def begin(self, frame_bytes):
        self.heard.append(BEGIN)

    def issue(self, raw):
        pass

    def post(self, outgoing):
        return []

    def wait(self, works):
        pass


class Device:
    """The CUDA side of the links; remembers what it was asked to do.

    It computes until ``free`` is set, and its results are on their way until ``taken`` is.
    """

    def __init__(self):
        self.acts, self.ns, self.waited = [], 5, 0
        self.free, self.taken = threading.Event(), threading.Event()
        self.free.set()
        self.taken.set()

    def reserve(self, name, incoming):
        pass

    def receive(self, name, incoming, issue):
        self.acts.append(f"{name} {incoming.message.ids.chunk_index}")

    def pass_on(self, incoming, issue):
        self.acts.append(f"mesh_pg {incoming.message.ids.chunk_index}")

    def complete(self, name, incoming):
        if incoming.message.action is PPAction.INFER:
            self.acts.append(f"compute {incoming.message.ids.chunk_index}")
        return incoming.message

    def send(self, name, outgoing, issue):
        self.acts.append(f"send {outgoing.message.ids.chunk_index} after {outgoing.message.stage1_ns} ns")

    def begin(self, name, which):
        self.acts.append(f"begin {which['chunk_index']}")
        end = self.launched()
        end.record = lambda stream: self.acts.append(f"end {which['chunk_index']}")
        return SimpleNamespace(end=end, ns=self.ns)

    def launched(self, name=None):
        on_link = SimpleNamespace(synchronize=lambda: self.taken.wait(10.0))
        return SimpleNamespace(synchronize=self._passed) if name is None else on_link

    def _passed(self):
        assert self.free.wait(10.0)
        self.waited += 1

    @contextmanager
    def computing(self, name, which):
        yield SimpleNamespace(end=self.launched(), ns=self.ns)

    def of_the_mesh(self):
        """Return what all mesh ranks do together, in order."""
        return [act for act in self.acts if act.startswith(("mesh_pg", "compute"))]


@pytest.fixture
def plane_of(monkeypatch):
    for end in MESH_ENDS:
        monkeypatch.setattr(f"ppwork.runtime.mesh.{end}", Link)

    planes = []

    def made(rank, depth=2, timeout_s=5.0, on_device=True):
        monkeypatch.setattr(Link, "coming", queue.Queue(), raising=False)
        monkeypatch.setattr(Link, "heard", [], raising=False)
        topology = Topology(2)
        role = topology.role(rank)
        groups = SimpleNamespace(rank=rank, role=role, topology=topology, device=CPU, timeout_s=timeout_s)
        plan = PipelinePlan(mesh_size=2, in_flight_depth=depth)
        if on_device:
            plane = PPControlPlane._cuda_kinds[role](plan, groups, Recorder(None))
            plane.device = Device()
        else:
            plane = PPControlPlane.join(plan, groups=groups)
        planes.append((plane, Link.coming))
        return plane

    yield made
    for plane, coming in planes:
        coming.put(OVER)
        if plane.device is not None:
            plane.device.free.set()
            plane.device.taken.set()
        for lane in plane._lanes.values():
            lane.close(0.1)


@pytest.fixture
def lose_patience(monkeypatch):
    """Shorten every wait of the planes for their lanes; what has to come first has its usual bound."""
    return lambda: monkeypatch.setattr(PPControlPlane, "_patience_s", 0.1)


def incoming(k, call=None, action=PPAction.INFER, reason=None, payload=None):
    plan = ChunkPlan.of(1) if action is PPAction.INFER else None
    ids = Ids(k if call is None else call, k, 0)
    return Incoming(PPEnvelope(action, ids, plan, reason=reason), None, [], payload, None)


def compute(plane, result=None, took=None):
    """Be stage 1 for one chunk."""
    envelope = plane.receive()
    ids = plane.computed(1)
    if isinstance(plane, LeaderPlane):
        plane.send_result(result or PPResult(PPAction.INFER, ids, 1), took)
    return envelope.ids.chunk_index


@pytest.mark.parametrize(
    ("rank", "device", "kind"),
    [
        (0, "cuda", "Stage0Plane"),
        (1, "cuda", "CudaLeaderPlane"),
        (2, "cuda", "CudaFollowerPlane"),
        (1, "cpu", "LeaderPlane"),
        (2, "cpu", "FollowerPlane"),
    ],
)
def test_join_makes_the_plane_of_a_rank_and_its_device(monkeypatch, rank, device, kind):
    topology = Topology(2)
    groups = SimpleNamespace(
        rank=rank, role=topology.role(rank), topology=topology, device=torch.device(device), timeout_s=5.0
    )
    idle = MagicMock()
    for end in MESH_ENDS:
        monkeypatch.setattr(f"ppwork.runtime.mesh.{end}", idle)
        monkeypatch.setattr(f"ppwork.runtime.stage0.{end}", idle, raising=False)
    for name in ("plane.Lane", "cuda_mesh.Lane", "plane.CudaLinks"):
        monkeypatch.setattr(f"ppwork.runtime.{name}", idle)
    assert type(PPControlPlane.join(PipelinePlan(mesh_size=2), groups=groups)).__name__ == kind


def test_a_computed_result_leaves_before_the_next_chunk_is_handed_out(plane_of):
    """Its kernels would else be launched first, and NCCL starts operations in the order of the host."""
    plane = plane_of(1)
    for k in range(2):
        Link.coming.put(incoming(k))
    assert [compute(plane), plane.receive().ids.chunk_index] == [0, 1]
    acts = plane.device.acts
    assert acts.index("compute 0") < acts.index("send 0 after 0 ns") < acts.index("compute 1")


class Watch:
    """Of a loop of one's own, which the plane tells what it does."""

    def called(self, call):
        pass

    def returned(self, message, *, good=True):
        pass

    def answered(self, tensors, metadata):
        pass


def loop_of_two(plane_of, monkeypatch, *, ns=5, timeout_s=5.0):
    """Return the leader of a loop of one's own whose device needs so long for a chunk, after two chunks."""
    plane = plane_of(1, timeout_s=timeout_s)
    plane.watch, plane.device.ns = Watch(), ns
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    Link.coming.put(incoming(0))
    for chunk in islice(plane.chunks(), 3):  # a chunk is handed out once the one before has been sent
        Link.coming.put(incoming(chunk.ids.chunk_index + 1))
        plane.device.acts.append(f"launch {chunk.ids.chunk_index}")
        plane.reply({})
    return plane


def test_a_loop_of_ones_own_tells_the_time_of_the_device_and_not_of_its_launches(plane_of, monkeypatch):
    acts = loop_of_two(plane_of, monkeypatch, ns=7).device.acts
    for k in range(2):
        each = [act for act in acts if act.partition(" ")[2].startswith(f"{k}")]
        assert each[-4:] == [f"begin {k}", f"launch {k}", f"end {k}", f"send {k} after 7 ns"]


def test_a_loop_whose_device_takes_longer_than_nccl_waits_is_ended(plane_of, monkeypatch):
    with pytest.raises(LocalProtocolError, match=r"The device took 9\.0 s for a chunk"):
        loop_of_two(plane_of, monkeypatch, ns=9_000_000_000)


CHUNKS = 16


def leader_in_step(plane_of, depth):
    """Return what the leader issues where stage 1 is longer: chunk k + depth leaves after result k."""
    plane, frames = plane_of(1, depth), 0
    for k in range(CHUNKS):
        while frames < max(k - 1, 0) + depth:
            Link.coming.put(incoming(frames))
            frames += 1
        wait_for(lambda frames=frames: sum(item is not BEGIN for item in Link.heard) == frames)
        assert compute(plane) == k
        wait_for(lambda k=k: plane.device.waited == k + 1)
    return plane.device.acts


@pytest.mark.parametrize("depth", [3, 4, 6])
def test_what_is_here_in_time_is_transferred_behind_the_chunk_before_it(plane_of, depth):
    """Chunk k's transfers are issued before the sums of k - 1, and so can run beside them.

    The down link takes all that has come, in the first place: rank 0's sends end, however many are in flight,
    and the receive of a result, issued behind them, is not late by the depth.
    """
    acts = leader_in_step(plane_of, depth)
    for k in range(1, CHUNKS):
        assert acts.index(f"mesh_pg {k + 1}") < acts.index(f"compute {k}")
        assert acts.index(f"down_pg {k + depth - 2}") < acts.index(f"compute {k}")


def one_ahead(depth):
    """Return what a leader would issue that receives the next chunk behind the kernels of this one."""
    acts = ["down_pg 0", "mesh_pg 0"]
    for k in range(CHUNKS):
        ahead = [f"down_pg {k + 1}", f"mesh_pg {k + 1}"] if depth > 1 else []
        acts += [f"compute {k}", *ahead, f"send {k}"]
    return acts


def hidden_and_late(depth, acts, *, posted=False):
    """Return how many transfers of mid-run end before the chunk before theirs, and the latest result."""
    follower = [act for act in acts if act.startswith(("mesh_pg", "compute"))]
    stage0 = stage0_device(depth, CHUNKS + depth, posted=posted)
    at = ends(stage0, mesh_device(acts, follower=False), mesh_device(follower, follower=True))
    middle = range(depth, CHUNKS - depth)
    hidden = [at[f"mesh_pg {k + 1}"] < at[f"late_sum {k}"] for k in middle]
    return sum(hidden) / len(middle), max(at[f"up_pg {k}"] - at[f"late_sum {k}"] for k in middle)


@pytest.mark.parametrize("depth", [3, 4, 6])
def test_in_nccls_order_transfers_are_hidden_and_no_result_is_late(plane_of, depth):
    """By the rules of ``launch_order``, for what the leader really issues; a card has the last word."""
    assert hidden_and_late(depth, leader_in_step(plane_of, depth)) == (1.0, TRANSFER)


@pytest.mark.parametrize(("depth", "late"), [(3, False), (4, True)])
def test_one_chunk_ahead_nothing_would_be_hidden_and_results_late_with_the_depth(depth, late):
    hidden, lag = hidden_and_late(depth, one_ahead(depth))
    assert hidden == 0.0
    assert (lag >= STAGE1) == late


def test_one_chunk_ahead_a_depth_of_6_would_deadlock():
    with pytest.raises(Deadlock):
        hidden_and_late(6, one_ahead(6))


@pytest.mark.parametrize("depth", [3, 4, 6])
def test_receives_of_results_that_were_posted_ahead_would_deadlock(plane_of, depth):
    """Of one group the second waits for the first, and so does every send that is issued behind it."""
    with pytest.raises(Deadlock):
        hidden_and_late(depth, leader_in_step(plane_of, depth), posted=True)


@pytest.mark.parametrize("depth", [1, 2, 3, 6])
def test_all_mesh_ranks_issue_in_one_order(plane_of, depth):
    """R5: whatever came in time at the leader, a follower reads where each chunk begins."""
    leader = plane_of(1, depth)
    for k in range(depth):
        Link.coming.put(incoming(k))
    for k in range(10):
        assert compute(leader) == k
        Link.coming.put(incoming(k + depth))
    wait_for(lambda: sum(item is not BEGIN for item in Link.heard) == 10 + depth)
    stream = list(Link.heard)
    follower = plane_of(2, depth)
    for item in stream:
        Link.coming.put(item)
    assert [compute(follower) for _ in range(10)] == list(range(10))
    together = leader.device.of_the_mesh()
    assert together[-1] == "compute 9"
    assert follower.device.of_the_mesh() == together


def test_the_leader_begins_a_chunk_while_the_one_before_is_computed_if_its_next_is_here(plane_of):
    plane = plane_of(1, depth=3)
    plane.device.free.clear()
    Link.coming.put(incoming(0))
    assert compute(plane) == 0
    for k in (1, 2):
        Link.coming.put(incoming(k))
    handed_out = []
    thread = threading.Thread(target=lambda: handed_out.append(plane._next_to_launch()))
    thread.start()
    wait_for(lambda: Link.heard.count(BEGIN) == 2)
    assert not handed_out, "the result of the chunk before it has not left"
    plane.device.free.set()
    thread.join(10.0)
    assert handed_out[0].message.ids.chunk_index == 1
    assert plane.device.acts[-1] == "send 0 after 0 ns"


def test_the_leader_only_receives_until_rank_0_has_taken_the_result_before_the_last(plane_of):
    """Rank 0 takes it behind its sends; this rank must receive those, and could not behind a chunk's sums."""
    plane = plane_of(1, depth=6)
    plane.device.taken.clear()
    Link.coming.put(incoming(0))
    Link.coming.put(incoming(1))
    assert [compute(plane), compute(plane)] == [0, 1]
    Link.coming.put(incoming(2))
    handed_out = []
    thread = threading.Thread(target=lambda: handed_out.append(plane._next_to_launch()))
    thread.start()
    wait_for(lambda: "down_pg 2" in plane.device.acts)
    Link.coming.put(incoming(3))
    wait_for(lambda: "down_pg 3" in plane.device.acts)
    assert not handed_out
    assert "send 1 after 0 ns" not in plane.device.acts
    plane.device.taken.set()
    thread.join(10.0)
    assert handed_out[0].message.ids.chunk_index == 2
    assert "send 1 after 0 ns" in plane.device.acts


def test_a_heartbeat_needs_no_begin(plane_of):
    plane = plane_of(2)
    for item in (incoming(-1, 0, PPAction.NOOP), incoming(0, 1), BEGIN, incoming(0, 2, PPAction.NOOP)):
        Link.coming.put(item)
    assert plane.receive().action is PPAction.NOOP
    assert compute(plane) == 0
    assert plane.receive().action is PPAction.NOOP


def test_a_follower_launches_one_chunk_ahead_of_its_device_and_no_more(plane_of, lose_patience):
    """NCCL counts an operation's time from its launch."""
    plane = plane_of(2, depth=3)
    for k in range(3):
        Link.coming.put(incoming(k))
        Link.coming.put(BEGIN)
    plane.device.free.clear()
    assert [compute(plane), compute(plane)] == [0, 1]
    lose_patience()
    with pytest.raises(PeerTimeoutError, match="chunk on the device did not end"):
        plane.receive()
    plane.device.free.set()


def test_a_follower_checks_ids_before_it_issues_the_broadcast(plane_of):
    """R2."""
    plane = plane_of(2)
    Link.coming.put(incoming(1))
    Link.coming.put(BEGIN)
    with pytest.raises(RemoteProtocolError, match="call_id 1 followed -1"):
        plane.receive()
    assert plane.device.acts == []


def test_the_leader_has_room_for_a_chunk_before_the_mesh_hears_of_it(plane_of):
    """R1."""
    plane = plane_of(1)
    heard = []

    def reserve(name, incoming):
        heard.append((name, list(Link.heard)))
        raise LocalProtocolError("no room")

    plane.device.reserve = reserve
    Link.coming.put(incoming(0))
    with pytest.raises(LocalProtocolError, match="no room"):
        plane.receive()
    assert heard == [("down_pg", [])]
    assert Link.heard == []


def test_a_notice_ends_the_leader_while_its_device_computes(plane_of):
    plane = plane_of(1)
    plane.device.free.clear()
    Link.coming.put(incoming(0))
    compute(plane)
    reason = Reason("ValueError", "why", {}, "")
    Link.coming.put(incoming(0, 0, PPAction.ERROR, reason))
    with pytest.raises(TerminalNotice, match="why"):
        plane.receive()
    plane.device.free.set()


# The time that a chunk took


def test_without_a_measure_the_callers_own_time_is_sent(plane_of):
    plane = plane_of(1)
    for k in range(2):
        Link.coming.put(incoming(k))
    compute(plane, PPResult(PPAction.INFER, Ids(0, 0, 0), 1, 7_000_000))
    plane.receive()
    assert "send 0 after 7000000 ns" in plane.device.acts


def test_with_a_measure_the_devices_time_is_sent(plane_of):
    plane = plane_of(1)
    for k in range(2):
        Link.coming.put(incoming(k))
    with plane.timed("generate", {}) as took:
        pass
    compute(plane, took=took)
    plane.receive()
    assert "send 0 after 5 ns" in plane.device.acts


@pytest.mark.parametrize(("depth", "device_s", "host_s", "refused"), [
    (3, 40.0, 0.1, True),
    (1, 40.0, 0.1, False),  # nothing is launched ahead
    (3, 40.0, 39.0, False),  # the host took it, a compiler mostly: nothing waited
    (3, 29.0, 0.1, False),
])  # fmt: skip
def test_a_plan_that_nccl_would_end_is_refused_with_its_numbers(plane_of, depth, device_s, host_s, refused):
    plane = plane_of(1, depth, timeout_s=60.0)
    for k in range(2):
        Link.coming.put(incoming(k))
        if depth == 1:
            break
    span = SimpleNamespace(end=plane.device.launched(), ns=int(device_s * 1e9))
    compute(plane, took=Timed(int(host_s * 1e9), span))
    if not refused:
        Link.coming.put(incoming(1)) if depth == 1 else None
        assert plane.receive().ids.chunk_index == 1
        return
    with pytest.raises(LocalProtocolError) as caught:
        plane.receive()
    assert caught.value.what == (
        "The device took 40.0 s for a chunk. At depth 3 NCCL waits up to 79.8 s for an operation, "
        "and timeout_s is 60."
    )
    assert caught.value.where["chunk_index"] == 0
    assert "timeout_s (--timeout-s) above 80" in caught.value.check_first


@pytest.mark.parametrize(
    ("rank", "announced", "computes", "said", "group"),
    [
        (1, False, False, "No envelope came within", "mesh_pg"),
        (1, True, True, "The device did not finish a chunk within", "tp_pg"),
        (2, True, False, "The mesh did not begin a chunk within", "mesh_pg"),
    ],
)
def test_a_bound_that_passes_says_for_what_this_rank_waited(
    plane_of, lose_patience, rank, announced, computes, said, group
):
    plane = plane_of(rank)
    if announced:
        Link.coming.put(incoming(0))
        wait_for(plane._ready.waiting)
    if computes:
        plane.device.free.clear()
        compute(plane)
    lose_patience()
    with pytest.raises(PeerTimeoutError, match=said) as caught:
        plane.receive()
    assert caught.value.where == {"group": group}


@pytest.mark.parametrize(("rank", "large"), [(1, False), (1, True), (2, False)])
def test_a_loop_that_takes_nothing_is_named_and_what_came_before_is_still_handed_out(
    plane_of, lose_patience, rank, large
):
    """Heartbeats fill the queue while it computes: it was told that no envelope came."""
    plane = plane_of(rank, on_device=False)
    lose_patience()
    # A payload that the mesh_pg lane passes on.
    payload = torch.empty(AT_ONCE_BYTES + 1, dtype=torch.uint8) if large else None
    room = plane._ready.bound
    for k in range(2 * room + 8):
        Link.coming.put(incoming(-1, k, PPAction.NOOP, payload=payload))
    wait_for(lambda: plane._ready.waiting() > room)
    ids = [plane.receive().ids.call_id for _ in range(room)]
    assert ids == list(range(room))
    with pytest.raises(StuckError) as caught:
        plane.receive()
    assert caught.value.what == f"The loop took no envelope for 0.1 s while {room} waited for it."
    assert caught.value.where == {"rank": rank, "role": str(plane.role)}
    assert "compute" in caught.value.check_first


def test_an_error_of_a_lane_needs_no_room(plane_of):
    """It came to a full queue, was lost with the lane's job, and the loop waited out its bound."""
    plane = plane_of(2, on_device=False)
    room = plane._ready.bound
    for k in range(room):
        Link.coming.put(incoming(-1, k, PPAction.NOOP))
    wait_for(lambda: plane._ready.waiting() == room)
    Link.coming.put(OVER)
    wait_for(lambda: plane._lanes["mesh_pg"].statistics().done == 1)
    assert [plane.receive().ids.call_id for _ in range(room)] == list(range(room))
    with pytest.raises(RuntimeError, match=OVER):
        plane.receive()


def test_a_follower_sends_no_result(plane_of):
    plane = plane_of(2, on_device=False)
    assert type(plane) is FollowerPlane
    Link.coming.put(incoming(0))
    assert plane.receive().ids == Ids(0, 0, 0)
    with pytest.raises(LocalProtocolError, match="send_result was called on the follower; only leader may"):
        plane.send_result(PPResult(PPAction.INFER, plane.computed(1), 1))
    assert [fill.name for fill in plane.statistics()] == ["mesh_pg", "ready"]


# An own loop's answer in one call


def test_reply_counts_by_the_plan_and_the_leader_sends_what_it_was_given(plane_of):
    plane = plane_of(1, on_device=False)
    sent = []
    send = plane.send_result

    def sending(result):
        sent.append(result)
        send(result)

    plane.send_result = sending
    for k in range(2):
        Link.coming.put(incoming(k))
    x = torch.ones(2)
    plane.acknowledge = lambda: sent.append("acknowledged")
    for envelope in plane.chunks():
        k = envelope.ids.chunk_index
        assert plane.reply({"x": x}, metadata={"k": k}, copy=k == 1) == envelope.ids
        if k == 1:
            Link.coming.put(incoming(1, 2, PPAction.NOOP))
            Link.coming.put(incoming(1, 3, PPAction.SHUTDOWN))
    first, second, last = sent
    assert (first.ids, first.observed_calls, first.metadata) == (Ids(0, 0, 0), 1, {"k": 0})
    assert first.tensors["x"] is x
    assert first.stage1_ns > 0
    assert (second.metadata, last) == ({"k": 1}, "acknowledged")
    assert second.tensors["x"] is not x
    assert torch.equal(second.tensors["x"], x)


def test_a_followers_reply_checks_its_count_and_sends_nothing(plane_of):
    plane = plane_of(2, on_device=False)
    for k in range(2):
        Link.coming.put(incoming(k))
    chunks = plane.chunks()
    ids = next(chunks).ids
    assert plane.reply({}) == ids
    next(chunks)
    with pytest.raises(LocalProtocolError, match="2 generator calls were made; the chunk's plan expected 1"):
        plane.reply({}, calls=2)


@pytest.mark.parametrize("rank", [1, 2])
def test_a_second_reply_is_no_answer_to_a_chunk_that_has_only_arrived(plane_of, rank):
    """At depth 3 the lane has taken the next ones: with their ids chunk 0 would go out as chunk 1."""
    plane = plane_of(rank, depth=3, on_device=False)
    plane.send_result = lambda result: None
    for k in range(3):
        Link.coming.put(incoming(k))
    if rank == 1:
        wait_for(lambda: len(plane.session.in_flight) == 3)
    for call in (plane.reply, plane.computed):
        with pytest.raises(LocalProtocolError, match=f"`{call.__name__}` was called before any chunk"):
            call({})
    next(plane.chunks())
    assert plane.reply({}) == Ids(0, 0, 0)
    for call in (plane.reply, plane.computed):
        with pytest.raises(LocalProtocolError, match=f"`{call.__name__}` was called twice for chunk 0"):
            call({})


@pytest.mark.parametrize("answer", ["none", "computed"])
@pytest.mark.parametrize("rank", [1, 2])
def test_a_loop_that_goes_on_without_an_answer_is_refused_at_any_depth(plane_of, rank, answer):
    plane = plane_of(rank, depth=3, on_device=False)
    for k in range(3):
        Link.coming.put(incoming(k))
    chunks = plane.chunks()
    next(chunks)
    plane.reply({"x": torch.ones(1)})
    next(chunks)
    if answer == "computed":
        plane.computed(1)
        if rank == 2:  # a follower has nothing else to say
            assert next(chunks).ids == Ids(2, 2, 0)
            return
    with pytest.raises(LocalProtocolError, match="went on after chunk 1 without an answer") as caught:
        next(chunks)
    assert caught.value.where == Ids(1, 1, 0).where()
    assert "`continue`" in caught.value.check_first


def test_an_error_names_the_chunk_in_hand_and_not_the_one_that_came_last(plane_of):
    """Three have come; the loop has the second, then none, and hands out what cannot travel."""
    plane = plane_of(1, depth=3, on_device=False)
    for k in range(3):
        Link.coming.put(incoming(k))
    wait_for(lambda: len(plane.session.in_flight) == 3)
    assert plane.at == Ids(-1, -1, 0)
    chunks = plane.chunks()
    next(chunks)
    plane.reply({})
    assert plane.at == Ids(0, 0, 0)
    next(chunks)
    said = r"The tensor 'x' was a non-contiguous view: shape \[4, 4\], strides \(1, 4\)\."
    with pytest.raises(LocalProtocolError, match=said) as caught:
        plane.reply({"x": torch.ones(4, 4).t()})
    assert "'x' as `.contiguous()`, a copy of 64 bytes; `copy=True` in a loop" in caught.value.check_first
    assert caught.value.where == {"rank": 1, "role": "leader", **Ids(1, 1, 0).where()}
    plane.reply({})
    with pytest.raises(LocalProtocolError, match="`acknowledge` was called in state busy") as caught:
        plane.acknowledge()
    next(plane.chunks())
    for wrong, given in (([torch.ones(1)], "A list"), ({3: torch.ones(1)}, r"A dict with the keys \[3\]")):
        with pytest.raises(LocalProtocolError, match=f"{given} was handed over, and not tensors by name"):
            plane.reply(wrong)
    error = StageError("It broke.")
    plane.fail(error)
    assert error.where == {"rank": 1, "role": "leader", **Ids(2, 2, 0).where()}
