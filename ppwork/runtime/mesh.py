"""The mesh's end of the control plane: each envelope goes to all mesh ranks, and one result per chunk back.

Theory of operation: what runs ahead of what.

- Receiving runs ahead of computing (rule R7). The leader uses two lanes for it: one takes envelopes from rank
  0 and checks them, the other broadcasts them. A follower uses one, which takes the broadcasts. The main
  thread takes from the last queue, ``_ready``, so it gets every envelope after its broadcast:

      leader      down_pg lane  -> _arrived ->  mesh_pg lane  -> _ready ->  main thread  ->  up_pg lane
      follower                                  mesh_pg lane  -> _ready ->  main thread

- The lane that takes a small envelope also broadcasts it, unless another envelope still waits for its
  broadcast: a hand-over would take longer than the broadcast. A large envelope is handed over, and the next
  one comes in meanwhile. ``_turn`` lets one lane at a time use ``mesh_pg`` (rule R7).
- The depth bounds each queue, so a slow mesh holds back rank 0 and not the other way round. A put that finds
  no room within its bound raises an ordinary error. To put an error needs no room.
- The leader checks an envelope on its lane, before any follower can see it: so only one rank refuses the
  envelope, and no rank waits in a collective. The lane may check chunk k+1 while the main thread still
  computes k; hence the lock, and the main thread's next call raises a refusal. A follower's main thread, not
  its lane, checks an envelope when it takes it: its session must not be ahead of what it computes.
- An error of a lane goes through the same queue as the envelopes, behind those that came before it: the main
  thread finishes the chunks that were in order, and then raises. So a notice also skips the check.
- When a rank leaves, ``_stop_ahead`` ends the leader's broadcasting lane, because the notice needs that lane.

``cuda_mesh`` has what a GPU adds, and where a GPU needs another order.
"""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from enum import Enum
from functools import cached_property, partial
from typing import Any, ClassVar

import msgspec
import torch

from ppwork.errors import LocalProtocolError, PeerTimeoutError, RemoteProtocolError, StuckError
from ppwork.protocol.backend_errors import SILENT_PEER_CHECK
from ppwork.protocol.envelope import Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.topology import STAGE0_RANK, Role
from ppwork.runtime.groups import Groups, TPGroup
from ppwork.runtime.lanes import LaneStatistics, WatchedQueue, give_way, result_of
from ppwork.runtime.lent import Lent, copies, line_of_caller
from ppwork.runtime.links import BroadcastReceiver, BroadcastRoot, P2PReceiver, P2PSender
from ppwork.runtime.messages import Incoming, Outgoing
from ppwork.runtime.plane import PPControlPlane, Timed, oldest
from ppwork.runtime.tensors import check_by_name, check_kind

AT_ONCE_BYTES = 256 << 10
"""Largest payload that its receiving lane also broadcasts; a larger one would delay the next message."""
LAST = (PPAction.SHUTDOWN, PPAction.ERROR)
"""After one of these no envelope follows."""


class QueueMark(Enum):
    """An item in the queues that is no message."""

    BEGIN = "begin"
    """On CUDA: the next chunk begins, after the broadcasts of all envelopes before this mark."""
    STOP = "stop"
    """No broadcast follows."""


Item = Incoming | QueueMark | Callable[[], None] | BaseException
"""Work for the main thread: an envelope or an error; on CUDA also a chunk's begin, or operations to issue."""


class MeshPlane(PPControlPlane):
    """The end of a mesh rank; ``join`` makes it a ``LeaderPlane`` or a ``FollowerPlane``."""

    _inbound: ClassVar[str]
    """The link on which this rank gets envelopes."""

    def __init__(self, plan: PipelinePlan, groups: Groups, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(plan, groups, *args, **kwargs)
        # One for the SHUTDOWN behind the last chunk, one for a chunk computed on the device, one for BEGIN.
        self._ready: WatchedQueue[Item] = WatchedQueue(plan.in_flight_depth + 3)
        self._in_hand: deque[Ids] = deque()
        """Chunks that were returned to the loop and are not computed."""
        self._since_ns = 0

    @cached_property
    def tp(self) -> TPGroup:
        """The mesh: its size and this rank's place in it, its group, and the sum over it."""
        return TPGroup(self.groups)

    def receive(self) -> PPEnvelope:
        """Return the next envelope, the same on every mesh rank.

        The leader has checked the whole envelope before the mesh saw any of it.

        Raises:
            RemoteProtocolError: It was not a legal envelope (leader, before the broadcast).
            TerminalNotice: Stage 0 or the leader ended the session (the rank that receives the notice).
            PeerLostError, PeerTimeoutError: The sender is gone or silent.
            StuckError: The loop took nothing for ``timeout_s`` and 2 s more while the queue was full (this
                mesh rank).

        Collective:
            ``mesh_pg``, on its lane: one broadcast of the frame, and one of each further part.

        Blocks:
            Until stage 0 sends; at most ``timeout_s``.
        """
        self._one_caller("receive")
        envelope = self._next_envelope()
        if envelope.action is PPAction.INFER:
            self._in_hand.append(envelope.ids)
        self._returned(envelope)
        return envelope

    def chunks(self) -> Iterator[PPEnvelope]:
        """Yield each chunk, which the loop answers by ``reply`` before the next; then acknowledge the end.

        Skips heartbeats. Raises, collective and blocks: as ``receive`` and ``acknowledge``.

        Raises:
            LocalProtocolError: The loop went on without an answer to the chunk (this mesh rank).
        """
        while (envelope := self.receive()).action is not PPAction.SHUTDOWN:
            if envelope.action is PPAction.INFER:
                self._since_ns = time.monotonic_ns()
                try:
                    yield envelope
                except GeneratorExit:  # a `break` closes this generator on the line of the break
                    self._last_call, self._left_at = "the end of `chunks()`", line_of_caller()
                    raise
                if self._is_open(envelope.ids):
                    raise LocalProtocolError(
                        f"The loop went on after chunk {envelope.ids.chunk_index} without an answer to it.",
                        where=envelope.ids.where(),
                        check_first="a `continue` on the way to `plane.reply`? every mesh rank answers each",
                    )
        self.acknowledge()

    def _is_open(self, ids: Ids) -> bool:
        """Say whether this rank still has to answer a chunk that was returned to the loop."""
        return ids in self._in_hand

    def reply(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        metadata: Mapping[str, Any] | None = None,
        calls: int | None = None,
        copy: bool = False,
    ) -> Ids:
        """Answer the oldest chunk: every mesh rank calls this, and the leader's answer goes to rank 0.

        This calls ``computed``, and on the leader also ``send_result`` with the time since ``chunks``
        yielded.

        Args:
            tensors: As for ``send_result``.
            metadata: Any plain data that msgpack can carry: rank 0 reads it as ``result.metadata``.
            calls: Generator calls made; default: the number in the chunk's plan.
            copy: As for ``send_result``.

        Returns:
            The ids of the chunk.

        Raises:
            LocalProtocolError: No chunk that was returned to the loop waits for its answer, or the count is
                not the plan's (this mesh rank); preflight refused the answer, and a corrected one may follow
                (leader); else as ``send_result`` (leader).
        """
        self._one_caller("reply")
        took_ns = time.monotonic_ns() - self._since_ns if self._since_ns else 0
        try:
            self._check_in_hand("reply")
            check_by_name(tensors)
            oldest = self.session.in_flight[0]
            calls = oldest.plan.expected_calls if calls is None else calls
            check_kind(int, calls=calls)
            result = PPResult(PPAction.INFER, oldest.ids, calls, took_ns, metadata or {}, tensors)
            result = self._checked(result, copy=copy)  # before the chunk ends: a refused one may be corrected
        except LocalProtocolError as error:
            self._goes_on(error)
            raise
        if self.watch is not None:
            self.watch.answered(tensors, result.metadata)
        self.computed(calls)
        self._answer(result)
        self._returned(None)
        return result.ids

    def compare(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compare tensors that every mesh rank must hold alike, such as counts, a cache, a random state.

        A wrong share of a sum is the same wrong sum on all ranks, so their answers do not show it. Every mesh
        rank calls this in the same place, between a chunk's arrival and its ``reply``. Nothing is sent: ranks
        of one host compare digests of all bytes through the run's folder. Without ``run_dir`` nothing is
        compared, nor with ``compare_collectives=0``, nor between hosts; ``join`` logs that once.

        Args:
            tensors: By name, dense; one on a GPU is copied to the host first, which waits for the GPU.

        Raises:
            LocalProtocolError: Another mesh rank holds another tensor (the later rank; names both, with
                chunk, line and tensor), or no chunk waits for its answer (this mesh rank).
        """
        self._check_in_hand("compare")
        check_by_name(tensors)
        if self.watch is not None:
            self.watch.compare(tensors)

    def _checked(self, result: PPResult, *, copy: bool) -> PPResult:  # noqa: ARG002  for who sends it
        """Return an answer as it will be sent, if that is this rank's role; refuse what cannot be."""
        return result

    def _answer(self, result: PPResult) -> None:
        """Send a result, if that is this rank's role."""

    def computed(self, observed_calls: int) -> Ids:
        """Check the call count of the oldest chunk on this mesh rank and return its ids (rule R4).

        Raises:
            LocalProtocolError: The count is not the plan's, or the loop has no chunk: a chunk that has
                arrived but was not returned to the loop does not count (this mesh rank).
            RemoteProtocolError: A later envelope was refused meanwhile (leader).
        """
        self._one_caller("computed")
        self._check_in_hand("computed")
        self._at = self.session.finished(observed_calls).ids
        self._in_hand.popleft()
        self._returned(None)
        return self._at

    def _check_in_hand(self, call: str) -> None:
        if not self._in_hand:
            twice = f"twice for chunk {self._at.chunk_index}"
            raise LocalProtocolError(
                f"`{call}` was called {twice if self._at.call_id >= 0 else 'before any chunk had come'}.",
                check_first="one answer for each chunk that `chunks` or `receive` has given",
            )

    @property
    def at(self) -> Ids:
        """The oldest chunk that the loop has; else the last one that it answered."""
        first = oldest(self._in_hand)
        return self._at if first is None else first

    @property
    def where(self) -> dict[str, Any]:
        """Rank, role, and the oldest chunk that the loop has, if there is one."""
        first = oldest(self._in_hand)
        return {**super().where, **({} if first is None else first.where())}

    def acknowledge(self) -> None:
        """Answer SHUTDOWN: the leader to rank 0, a follower by leaving.

        Raises:
            LocalProtocolError: SHUTDOWN has not come (this mesh rank).

        Blocks:
            Until rank 0 has taken all results; at most ``timeout_s``.
        """
        self._one_caller("acknowledge")
        self.session.may_acknowledge()
        self.session.acknowledged()

    def statistics(self) -> tuple[LaneStatistics, ...]:
        """Return how full each lane is, and how full the ``_ready`` queue is."""
        return (*super().statistics(), self._ready.statistics("ready"))

    def _own(self, incoming: Incoming) -> None:
        """Check an envelope and reserve its slot; on the lane that took it, before any other rank sees it."""

    def _admit(self, envelope: PPEnvelope) -> None:
        """Check an envelope on the main thread, if this role's lane has not."""

    def _take_ahead(self, name: str, receive: Callable[[], Incoming | None]) -> None:
        """Lane job: take envelopes one after another until the last one or an error."""
        try:
            while True:
                start_ns = time.monotonic_ns()
                if (incoming := receive()) is None:
                    self._hand_on(QueueMark.BEGIN)
                    continue
                envelope: PPEnvelope = self._only_kind(incoming, PPEnvelope)
                # Only the main thread acts on a notice: the chunk that it is computing is still in order.
                if envelope.action is not PPAction.ERROR:
                    self._own(incoming)
                end_ns = time.monotonic_ns()
                try:
                    self._hand_on(incoming)
                finally:  # the hand-over, for which a thread waits, comes before the record
                    ids = envelope.ids.where()
                    self.recorder.add_span("receive", start_ns, end_ns=end_ns, lane=name, ids=ids)
                if envelope.action in LAST:
                    return
        except BaseException as error:  # noqa: BLE001
            self._end(error)

    def _hand_on(self, item: Item) -> None:
        """Hand on an envelope that was taken ahead; runs on the lane that took it."""
        self._make_ready(item)

    def _end(self, error: BaseException) -> None:
        """Hand on the error that ended the lane, behind all items that the lane has handed on."""
        self._ready.put_last(error)

    def _make_ready(self, item: Item) -> None:
        """Give an item to the main thread; runs on a lane."""
        self._put(self._ready, item)
        give_way()

    def _put(self, waiting: WatchedQueue[Item], item: Item) -> None:
        try:
            waiting.put(item, timeout=self._patience_s)
        except queue.Full:
            raise StuckError(
                f"The loop took no envelope for {self._patience_s:g} s while {waiting.bound} waited for it.",
                where={"rank": self.groups.rank, "role": str(self.role)},
                check_first="does it compute that long, or wait for something else? else raise timeout_s",
            ) from None

    def _next_envelope(self) -> PPEnvelope:
        """Return the next envelope, with its tensors."""
        item = self._next_item()
        assert isinstance(item, Incoming), "without a GPU nothing is computed beside the main thread"  # noqa: S101
        envelope: PPEnvelope = self._only_kind(item, PPEnvelope)
        return envelope

    def _next_item(self) -> Incoming | QueueMark | Callable[[], None]:
        timeout_s = self._patience_s
        try:
            item = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            what, group, check = self._awaited()
            what = f"{what} within {timeout_s:g} s."
            raise PeerTimeoutError(what, where={"group": group}, check_first=check) from None
        if isinstance(item, BaseException):
            raise item
        if isinstance(item, Incoming):
            self._admit(self._only_kind(item, PPEnvelope))
            self._refuse_notice(item)
        return item

    def _awaited(self) -> tuple[str, str, str]:
        """Say what did not come, on which group, and what to check first."""
        return "No envelope came", "mesh_pg", SILENT_PEER_CHECK


class LeaderPlane(MeshPlane, role=Role.LEADER):
    """The leader's end: from rank 0 to the mesh, and one result per chunk back."""

    _inbound = "down_pg"
    _outbound = "up_pg"

    def __init__(self, plan: PipelinePlan, groups: Groups, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(plan, groups, *args, **kwargs)
        self._down, self._up = P2PReceiver(groups, "down_pg", plan), P2PSender(groups, "up_pg")
        self._mesh = BroadcastRoot(groups)
        self.links.update(down_pg=self._down, mesh_pg=self._mesh, up_pg=self._up)
        bound = plan.in_flight_depth + 2  # plus the SHUTDOWN behind the last chunk, and BEGIN
        self._arrived: WatchedQueue[Item] = WatchedQueue(bound)
        self._at_once_bytes = AT_ONCE_BYTES if plan.in_flight_depth > 1 else plan.max_message_bytes
        self._left = self._passed = 0
        """Items that the ``down_pg`` lane has left to the ``mesh_pg`` lane, and those that it has done."""
        self._turn, self._told = threading.Lock(), False
        self._results: deque[Future[None]] = deque()
        self._owed: list[int] = []
        """Chunks that were returned to the loop and whose result was not sent."""
        self._lent = Lent(plan.check_buffers, "the result of chunk", "rank 0 had it")
        self._session_lock = threading.Lock()
        self._refused: RemoteProtocolError | None = None
        self._lanes["down_pg"].submit(partial(self._take_ahead, "down_pg", self._down.receive))
        self._lanes["mesh_pg"].submit(self._pass_on_ahead)

    def computed(self, observed_calls: int) -> Ids:
        """Check as ``MeshPlane.computed``, unless a later envelope was refused meanwhile."""
        with self._session_lock:
            if self._refused is not None:
                raise self._refused
            return super().computed(observed_calls)

    def receive(self) -> PPEnvelope:
        """Return the next envelope; see ``MeshPlane.receive``.

        Raises:
            LocalProtocolError: Tensors of a result were written to before rank 0 had the result, or no chunk
                can come because a result was not sent (leader).
        """
        if len(self._owed) >= self.plan.in_flight_depth:
            raise self._unanswered()
        try:
            envelope = super().receive()
        except PeerTimeoutError:
            if self._owed:
                raise self._unanswered() from None  # rank 0 waits for the result, and is not to blame
            raise
        if envelope.action is PPAction.INFER:
            self._owed.append(envelope.ids.chunk_index)
        # When this chunk comes, rank 0 has taken the result of the chunk ``in_flight_depth`` before it; when
        # SHUTDOWN comes, it has taken all results.
        is_last = envelope.action is PPAction.SHUTDOWN
        self._lent.take_back(envelope.ids.chunk_index - (0 if is_last else self.plan.in_flight_depth))
        return envelope

    def send_result(self, result: PPResult, took: Timed | None = None, *, copy: bool = False) -> None:
        """Send a result to rank 0. On CUDA it leaves once the device has computed it.

        Args:
            result: Its ``stage1_ns`` is sent as it is, unless ``took`` has the device's time. Its tensors
                belong to the transport until ``receive`` returns the chunk ``in_flight_depth`` after this
                one.
            took: From ``timed`` around the launches; default: all work that was launched until now.
            copy: Send copies: for output buffers that are filled anew for each chunk.

        Raises:
            LocalProtocolError: Preflight refused the result, a tensor that an earlier result also has was
                written to, or NCCL would not wait as long as the device takes; no byte has left (leader).
            PeerLostError, PeerTimeoutError: An earlier result did not get through (leader). On CUDA a later
                ``receive`` raises all of these.

        Blocks:
            Only while ``in_flight_depth`` results are still on their way; at most ``timeout_s``.
        """
        self._one_caller("send_result")
        self._lent.check(result.tensors)
        if copy:
            result = msgspec.structs.replace(result, tensors=copies(result.tensors))
        self._send_when_computed(result, took)
        if result.ids.chunk_index in self._owed:
            self._owed.remove(result.ids.chunk_index)
        self._lent.lend(result.ids.chunk_index, result.tensors, passed=self.device is None)
        self._returned(None)

    def _checked(self, result: PPResult, *, copy: bool) -> PPResult:
        if copy:
            result = msgspec.structs.replace(result, tensors=copies(result.tensors))
        self.preflight.check(result)
        return result

    def _answer(self, result: PPResult) -> None:
        self.send_result(result)

    def _is_open(self, ids: Ids) -> bool:
        return super()._is_open(ids) or ids.chunk_index in self._owed

    def _unanswered(self) -> LocalProtocolError:
        return LocalProtocolError(
            f"Chunk {self._owed[0]} was received, and no result was sent for it.",
            where={"chunk_index": self._owed[0]},
            check_first="does the leader's loop call `send_result` for every chunk?",
        )

    def acknowledge(self) -> None:
        """Answer SHUTDOWN; see ``MeshPlane.acknowledge``."""
        self.session.may_acknowledge()
        self.send_result(PPResult(PPAction.SHUTDOWN, self.session.last_ids))
        self._await_results(1)
        super().acknowledge()

    def statistics(self) -> tuple[LaneStatistics, ...]:
        """Return how full each lane and each queue between them is."""
        return (*super().statistics(), self._arrived.statistics("arrived"))

    def _send_when_computed(self, result: PPResult, took: Timed | None) -> None:  # noqa: ARG002  a device's
        """Send a result: on the CPU it is computed when the loop hands it over."""
        self._send(result)

    def _send(self, result: PPResult) -> None:
        try:
            outgoing = self.preflight(result)
        except LocalProtocolError as error:
            error.at(**result.ids.where())
            raise
        self._await_results(self.plan.in_flight_depth)
        self._commit("result.send", result.ids)
        self._results.append(self._send_out("up_pg", "send_result", outgoing))

    def _await_results(self, fewer_than: int) -> None:
        while self._results and (self._results[0].done() or len(self._results) >= fewer_than):
            sent = self._results.popleft()
            result_of(sent, self._patience_s, what="send of a result", group="up_pg", peer=STAGE0_RANK)

    def _own(self, incoming: Incoming) -> None:
        # On the lane: a refusal by the session here must not look like the main thread's own mistake.
        with self._session_lock:
            try:
                self.session.received(self._only_kind(incoming, PPEnvelope))
            except RemoteProtocolError as error:
                self._refused = error
                raise

    def _hand_on(self, item: Item) -> None:
        """Broadcast a small item here if none is before it; leave all others to the ``mesh_pg`` lane."""
        payload = item.recv_buffer if isinstance(item, Incoming) else None
        is_large = payload is not None and payload.numel() > self._at_once_bytes
        if is_large or self._passed < self._left:
            self._left += 1
            self._put(self._arrived, item)
        elif isinstance(item, Incoming):
            self._pass_on(item)
        else:
            self._make_ready(item)

    def _end(self, error: BaseException) -> None:
        if self._passed < self._left:
            self._arrived.put_last(error)
        else:
            super()._end(error)

    def _pass_on_ahead(self) -> None:
        """Lane job: broadcast the items that the ``down_pg`` lane has left to this lane."""
        try:
            while (item := self._arrived.get()) is not QueueMark.STOP:
                if isinstance(item, BaseException):
                    self._ready.put_last(item)
                    return
                if isinstance(item, Incoming):
                    self._pass_on(item)
                else:
                    if isinstance(item, QueueMark):
                        self._mesh.begin(self.plan.frame_bytes)
                    self._put(self._ready, item)
                self._passed += 1
        except BaseException as error:  # noqa: BLE001
            self._ready.put_last(error)

    def _pass_on(self, incoming: Incoming) -> None:
        """Broadcast a checked message (commitment point 2), and give it to the main thread."""
        ids = incoming.message.ids
        self._commit("mesh.broadcast", ids)
        start_ns, end_ns = time.monotonic_ns(), 0
        try:
            with self._turn:
                if not self._told:
                    self._mesh.pass_on(incoming)
            end_ns = time.monotonic_ns()
            self._make_ready(incoming)
        finally:
            self.recorder.add_span("broadcast", start_ns, end_ns=end_ns, lane="mesh_pg", ids=ids.where())

    def _notify(self, name: str, outgoing: Outgoing) -> None:
        if name == "mesh_pg":
            with self._turn:
                self._told = True
                self._mesh.notify(outgoing.head)
        else:
            super()._notify(name, outgoing)

    def _stop_ahead(self) -> None:
        self._arrived.put_last(QueueMark.STOP)


class FollowerPlane(MeshPlane, role=Role.FOLLOWER):
    """A follower's end: it takes the leader's broadcasts."""

    _inbound = "mesh_pg"

    def __init__(self, plan: PipelinePlan, groups: Groups, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(plan, groups, *args, **kwargs)
        self._mesh = BroadcastReceiver(groups, plan)
        self.links.update(mesh_pg=self._mesh)
        self._lanes["mesh_pg"].submit(partial(self._take_ahead, "mesh_pg", self._mesh.receive))

    def _admit(self, envelope: PPEnvelope) -> None:
        # Not on the lane: the leader may have finished the last chunk, and SHUTDOWN have come, while this
        # rank still computes that chunk. The leader, which has to check before the mesh, is never behind rank
        # 0.
        self.session.received(envelope)
