"""Which thread moves a message, and who hears of it: rank 0's sends and answers, the leader's broadcast."""

from __future__ import annotations

import queue
import threading
from collections import deque
from types import SimpleNamespace

import pytest
import torch
from waiting import wait_for

from ppwork.errors import LocalProtocolError, PeerLostError, TerminalNotice
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult, Reason
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.topology import Role, Topology
from ppwork.runtime import PPControlPlane
from ppwork.runtime.lanes import Lane
from ppwork.runtime.mesh import AT_ONCE_BYTES
from ppwork.runtime.messages import Incoming

MAIN = threading.current_thread().name
X = {"x": torch.ones(3)}


class Link:
    """An end of a link: ``coming`` is what it receives, ``acts`` what it was asked and by which thread."""

    def __init__(self, *args):
        self.coming, self.acts, self.may_leave = queue.Queue(), [], threading.Event()
        self.may_leave.set()
        self.breaks: Exception | None = None
        self.passing = threading.Event()

    def act(self, what):
        self.acts.append((what, threading.current_thread().name))

    def post(self, outgoing):
        self.act("post")
        return [outgoing]

    def wait(self, works):
        self.act("wait")
        assert self.may_leave.wait(10.0)
        if self.breaks is not None:
            raise self.breaks

    def send(self, outgoing):
        self.wait(self.post(outgoing))

    def receive(self):
        item = self.coming.get(timeout=10.0)
        if isinstance(item, Exception):
            raise item
        return item

    def pass_on(self, incoming):
        self.act(incoming.message.ids.chunk_index)
        self.passing.set()
        assert self.may_leave.wait(10.0)

    def notify(self, head):
        self.act("notice")


@pytest.fixture
def plane_of(monkeypatch):
    for module, ends in (
        ("stage0", ("P2PReceiver", "P2PSender")),
        ("mesh", ("P2PReceiver", "P2PSender", "BroadcastRoot")),
    ):
        for end in ends:
            monkeypatch.setattr(f"ppwork.runtime.{module}.{end}", Link)
    planes = []

    def made(role, depth):
        topology = Topology(2)
        groups = SimpleNamespace(
            rank=[Role.STAGE0, Role.LEADER].index(role), role=role, topology=topology,
            device=torch.device("cpu"), timeout_s=5.0,
        )  # fmt: skip
        planes.append(PPControlPlane.join(PipelinePlan(mesh_size=2, in_flight_depth=depth), groups=groups))
        return planes[-1]

    yield made
    for plane in planes:
        plane._stop_ahead()
        for link in plane.links.values():
            link.may_leave.set()
            link.coming.put(RuntimeError("the test is over"))
        for lane in plane._lanes.values():
            assert lane.close(5.0)


class Watch:
    """Looks at a loop: the calls that are not over, and those that are."""

    def __init__(self):
        self.open, self.ended = [], []

    def called(self, call):
        self.open.append(call)

    def returned(self, message, *, good=True):
        self.ended.append(self.open.pop())

    def timed(self, name):
        pass

    def answered(self, tensors, metadata):
        pass


def answer(k, action=PPAction.INFER, reason=None):
    return Incoming(PPResult(action, Ids(k, k, 0), 1, reason=reason), None, [], None, None)


def envelope(k, payload_bytes=0):
    message = PPEnvelope(PPAction.INFER, Ids(k, k, 0), ChunkPlan.of(1))
    payload = torch.empty(payload_bytes, dtype=torch.uint8) if payload_bytes else None
    return Incoming(message, None, [], payload, None)


@pytest.mark.parametrize(("depth", "poster"), [(1, MAIN), (2, "lane-down_pg")])
def test_rank_0_posts_at_depth_1_and_its_lane_where_chunks_overlap(plane_of, depth, poster):
    """R7; and what is posted is waited for once."""
    plane = plane_of(Role.STAGE0, depth)
    down, up = plane.links["down_pg"], plane.links["up_pg"]
    plane.send(X)
    up.coming.put(answer(0))
    plane.receive_result()
    wait_for(lambda: not plane.sending)
    assert down.acts == [("post", poster), ("wait", "lane-down_pg")]


@pytest.mark.parametrize("depth", [1, 2])
def test_a_send_never_waits_for_the_peer(plane_of, depth):
    plane = plane_of(Role.STAGE0, depth)
    plane.links["down_pg"].may_leave.clear()
    plane.send(X)
    assert plane.sending


@pytest.mark.parametrize("when", ["posted", "waited for"])
def test_a_send_that_breaks_is_heard_while_its_answer_is_awaited(plane_of, when):
    """At once, not as an answer that did not come within its bound, and by the next call, not by ``send``."""
    plane = plane_of(Role.STAGE0, 1)
    down = plane.links["down_pg"]
    lost = PeerLostError("gone", where={"group": "down_pg"}, check_first="")

    def breaking(*args):
        raise lost

    if when == "posted":
        down.post = breaking
    else:
        down.may_leave.clear()
        down.breaks = lost
    plane.send(X)
    threading.Timer(0.1, down.may_leave.set).start()
    with pytest.raises(PeerLostError, match="gone") as caught:
        plane.receive_result()
    assert caught.value is lost


@pytest.mark.parametrize("depth", [1, 2])
def test_a_heartbeat_that_breaks_is_no_result_and_names_the_peer(plane_of, depth):
    """Nothing is in flight then, so rank 0 asked for no answer: the peer is at fault, and not rank 0."""
    plane = plane_of(Role.STAGE0, depth)
    down, up = plane.links["down_pg"], plane.links["up_pg"]
    plane.send(X)
    up.coming.put(answer(0))
    plane.receive_result()
    wait_for(lambda: not plane.sending)
    down.breaks = lost = PeerLostError("gone", where={"group": "down_pg"}, check_first="")
    plane.heartbeat()
    wait_for(plane._news.waiting)
    assert plane.results_ready == 0
    with pytest.raises(PeerLostError) as caught:
        plane.await_result()
    assert caught.value is lost


def test_a_notice_is_preferred_to_the_send_that_broke(plane_of):
    plane = plane_of(Role.STAGE0, 2)
    down, up = plane.links["down_pg"], plane.links["up_pg"]
    down.breaks = PeerLostError("gone", where={}, check_first="")
    plane.send(X)
    up.coming.put(answer(0, PPAction.ERROR, Reason("ValueError", "why", {}, "")))
    with pytest.raises(TerminalNotice, match="why"):
        plane.receive_result()


def test_what_ended_the_answers_is_said_to_everybody_who_asks_again(plane_of):
    plane = plane_of(Role.STAGE0, 2)
    plane.send(X)
    plane.links["up_pg"].coming.put(PeerLostError("gone", where={}, check_first=""))
    for _ in range(2):
        with pytest.raises(PeerLostError, match="gone"):
            plane.receive_result()


@pytest.mark.parametrize("depth", [1, 3])
def test_a_source_may_call_heartbeat_as_often_as_it_likes(plane_of, depth):
    """The tenth call filled the lane while the mesh computed one chunk, and ended the session."""
    plane = plane_of(Role.STAGE0, depth)
    down, up = plane.links["down_pg"], plane.links["up_pg"]
    down.may_leave.clear()
    plane.send(X)
    for _ in range(20):
        plane.heartbeat()
    assert plane.session.last_ids.call_id == 0, "the link still carries the chunk"
    down.may_leave.set()
    wait_for(lambda: not plane.sending)
    plane.heartbeat()
    assert plane.session.last_ids.call_id == 1
    up.coming.put(answer(0))
    plane.receive_result()


def test_a_lane_at_its_bound_refuses_before_anything_is_posted():
    lane, may_end, firsts = Lane("down_pg", torch.device("cpu"), bound=2), threading.Event(), []
    taken = threading.Event()

    def job():
        taken.set()
        assert may_end.wait(10.0)

    lane.submit(job)
    assert taken.wait(10.0)
    for k in range(2):
        lane.submit(lambda: None, first=lambda k=k: firsts.append(k))
    with pytest.raises(LocalProtocolError, match="down_pg had 2 jobs waiting; one more was refused"):
        lane.submit(lambda: None, first=lambda: firsts.append(2))
    assert firsts == [0, 1]
    may_end.set()
    assert lane.close(10.0)


def test_a_lane_at_its_bound_is_waited_for_before_a_job_is_refused():
    """Its thread may be without a core while others go round: a chunk of a run was refused by that."""
    lane, may_end, taken = Lane("down_pg", torch.device("cpu"), bound=1), threading.Event(), threading.Event()

    def job():
        taken.set()
        assert may_end.wait(10.0)

    lane.submit(job)
    assert taken.wait(10.0)
    lane.submit(lambda: None)
    threading.Timer(0.1, may_end.set).start()
    assert lane.submit(lambda: "ran").result(10.0) == "ran"
    assert lane.close(10.0)


@pytest.mark.parametrize("depth", [1, 3])
def test_a_lane_that_is_late_holds_the_next_chunk_back_and_refuses_none(plane_of, depth):
    """On a busy machine: its chunks were answered, and it had not been told yet that they have left."""
    plane = plane_of(Role.STAGE0, depth)
    down, up = plane.links["down_pg"], plane.links["up_pg"]
    down.may_leave.clear()
    threading.Timer(0.3, down.may_leave.set).start()
    for k in range(3 * depth + 6):
        plane.send(X)
        up.coming.put(answer(k))
        plane.receive_result()
    wait_for(lambda: not plane.sending)
    assert down.acts.count(("wait", "lane-down_pg")) == 3 * depth + 6


# The leader's broadcast


@pytest.mark.parametrize(
    ("depth", "payload_bytes", "lane"),
    [
        (2, 0, "lane-down_pg"),
        (2, AT_ONCE_BYTES, "lane-down_pg"),
        (2, AT_ONCE_BYTES + 1, "lane-mesh_pg"),
        (1, AT_ONCE_BYTES + 1, "lane-down_pg"),  # nothing comes in meanwhile
    ],
)
def test_what_is_small_is_passed_on_by_the_lane_that_has_it(plane_of, depth, payload_bytes, lane):
    plane = plane_of(Role.LEADER, depth)
    plane.links["down_pg"].coming.put(envelope(0, payload_bytes))
    assert plane.receive().ids.chunk_index == 0
    assert plane.links["mesh_pg"].acts == [(0, lane)]


def test_a_small_envelope_does_not_overtake_a_large_one(plane_of):
    plane = plane_of(Role.LEADER, 3)
    down, mesh = plane.links["down_pg"], plane.links["mesh_pg"]
    mesh.may_leave.clear()
    down.coming.put(envelope(0, AT_ONCE_BYTES + 1))
    down.coming.put(envelope(1))
    assert mesh.passing.wait(10.0)
    wait_for(lambda: plane._left == 2)
    mesh.may_leave.set()
    assert [plane.receive().ids.chunk_index for _ in range(2)] == [0, 1]
    assert mesh.acts == [(0, "lane-mesh_pg"), (1, "lane-mesh_pg")]


def test_a_notice_waits_for_the_broadcast_that_is_under_way_and_is_the_last(plane_of):
    """R7 and R9: one thread at a time in ``mesh_pg``, and nothing behind the notice."""
    plane = plane_of(Role.LEADER, 3)
    down, mesh = plane.links["down_pg"], plane.links["mesh_pg"]
    mesh.may_leave.clear()
    down.coming.put(envelope(0))
    assert mesh.passing.wait(10.0)
    failing = threading.Thread(target=plane.fail, args=(ValueError("mine"),))
    failing.start()
    wait_for(lambda: plane.links["up_pg"].acts)  # rank 0 has been told, so the mesh is next
    assert [what for what, _ in mesh.acts] == [0]
    mesh.may_leave.set()
    failing.join(10.0)
    assert mesh.acts == [(0, "lane-down_pg"), ("notice", "lane-mesh_pg")]


def noop(call):
    message = PPEnvelope(PPAction.NOOP, Ids(call, 0, 0))
    return Incoming(message, None, [], None, None)


def test_a_notice_passes_a_full_queue_of_what_is_still_to_be_broadcast(plane_of):
    """The mark that ends the lane found no room and was dropped: the lane then waited for ever."""
    plane = plane_of(Role.LEADER, 2)
    down, mesh = plane.links["down_pg"], plane.links["mesh_pg"]
    mesh.may_leave.clear()
    room = plane._arrived.bound
    down.coming.put(envelope(0, AT_ONCE_BYTES + 1))
    assert mesh.passing.wait(10.0)
    for k in range(room):
        down.coming.put(noop(1 + k))
    wait_for(lambda: plane._arrived.waiting() == room)
    failing = threading.Thread(target=plane.fail, args=(ValueError("mine"),))
    failing.start()
    wait_for(lambda: plane.links["up_pg"].acts)  # rank 0 has been told, so the mesh is next
    mesh.may_leave.set()
    failing.join(10.0)
    assert mesh.acts[-1] == ("notice", "lane-mesh_pg")


class Popped(deque):
    """Not empty when it is asked, and empty when it is read: the main thread took the last one between."""

    def __bool__(self):
        return True


@pytest.mark.parametrize("role", [Role.STAGE0, Role.LEADER])
def test_a_thread_that_fails_while_the_main_thread_pops_still_tells_the_peers(plane_of, role):
    plane = plane_of(role, 2)
    plane.session.in_flight = plane._in_hand = Popped()
    error = ValueError("mine")
    recorded = []
    plane._on_failure = recorded.append
    plane.fail(error)
    assert recorded == [error]
    told = plane.links["down_pg" if role is Role.STAGE0 else "up_pg"]
    assert [what for what, _ in told.acts] == ["post", "wait"]


def test_fail_raises_nothing_whatever_breaks_on_its_way(plane_of, caplog):
    """Its caller is on the way out with an error of its own."""
    plane = plane_of(Role.STAGE0, 1)

    def breaking():
        raise OSError("disk")

    plane._stop_ahead, stop = breaking, plane._stop_ahead
    plane.fail(ValueError("mine"))
    assert "disk" in caplog.text
    plane._stop_ahead = stop


# What looks at a loop


def test_what_looks_at_a_loop_is_told_of_the_end_of_every_call_but_the_last(plane_of):
    """A loop that receives ahead went on unguarded behind the answer to the chunk before."""
    plane = plane_of(Role.LEADER, 2)
    plane.watch = watch = Watch()
    for k in range(2):
        plane.links["down_pg"].coming.put(envelope(k))
        plane.receive()
    plane.reply(X)
    plane.send_result(PPResult(PPAction.INFER, plane.computed(1), 1, tensors=X))
    plane.links["down_pg"].coming.put(
        Incoming(PPEnvelope(PPAction.SHUTDOWN, Ids(2, 1, 0)), None, [], None, None)
    )
    plane.receive()
    plane.acknowledge()
    answered = ["computed", "send_result", "reply", "computed", "send_result"]
    assert watch.ended == ["receive", "receive", *answered, "receive", "send_result"]
    assert watch.open == ["acknowledge"]


def refused(plane, call):
    """Let a call be refused, and return what its watch heard of it."""
    plane.watch = watch = Watch()
    with pytest.raises(LocalProtocolError) as caught:
        call()
    return caught.value, watch


def test_a_loop_goes_on_behind_its_guards_after_a_call_that_was_refused(plane_of):
    """A collective that nobody came to entered the backend: the guard was off until the next call."""
    plane = plane_of(Role.STAGE0, 2)
    plane.send(X)
    wrong = (
        lambda: plane.send([1]),
        lambda: plane.send({"x": torch.ones(2, 2).t()}),
        lambda: plane.send(X, steps=0),
        lambda: plane.send(X, steps="3"),
        lambda: plane.send(X, hard_cut="no"),
        plane.shutdown,  # with a chunk on its way
    )
    for call in wrong:
        _, watch = refused(plane, call)
        assert (watch.open, len(watch.ended)) == ([], 1)
    plane.watch = None
    plane.send(X)
    _, watch = refused(plane, lambda: plane.send(X))  # a third one
    assert (watch.open, watch.ended) == ([], ["send"])


WRONG_KINDS = {
    "metadata": ([1], "The metadata could not be serialised: a list was given, and not a dict."),
    "hard_cut": ("no", "`hard_cut` was 'no', of type str and not bool."),
    "flush": (1, "`flush` was 1, of type int and not bool."),
    "recompute": (torch.tensor(True), "`recompute` was tensor(True), of type Tensor and not bool."),
    "steps": (2.0, "`steps` was 2.0, of type float and not int."),
}


@pytest.mark.parametrize("name", WRONG_KINDS)
def test_an_argument_of_another_kind_is_refused_by_its_name(plane_of, name):
    """Some raised Python's own words, from our lines; a number of steps with a point failed on the mesh."""
    value, what = WRONG_KINDS[name]
    plane = plane_of(Role.STAGE0, 1)
    with pytest.raises(LocalProtocolError) as caught:
        plane.send(X, **{name: value})
    assert caught.value.what == what
    assert caught.value.check_first
    assert caught.value.where.items() >= {"rank": 0, "role": "stage0"}.items()
    plane.send(X)


def test_a_reply_that_was_refused_can_be_given_again(plane_of):
    """The corrected one was "called twice", and the run was lost."""
    plane = plane_of(Role.LEADER, 1)
    plane.links["down_pg"].coming.put(envelope(0))
    chunk = plane.receive()
    wrong = (
        lambda: plane.reply([1]),
        lambda: plane.reply({"x": torch.ones(2, 2).t()}),
        lambda: plane.reply({"x": 1}),
        lambda: plane.reply(X, calls="1"),
        lambda: plane.reply(X, metadata={"a": {1}}),
        lambda: plane.reply(X, metadata={"a": "." * 10**7}),
    )
    for call in wrong:
        error, watch = refused(plane, call)
        assert error.where == {"rank": 1, "role": "leader", **chunk.ids.where()}
        assert (watch.open, watch.ended) == ([], ["reply"])
    assert plane.links["up_pg"].acts == []
    assert plane.reply({"x": torch.ones(2, 2).t()}, copy=True) == chunk.ids
    wait_for(lambda: len(plane.links["up_pg"].acts) == 2)
    with pytest.raises(LocalProtocolError, match="`reply` was called twice for chunk 0"):
        plane.reply(X)
