"""The mesh's end of the control plane: envelopes in, the same on every mesh rank; one result out per chunk.

Theory of operation: who runs ahead of whom.

- Receiving runs ahead of computing (rule R7). The leader has two lanes for it: one takes envelopes from rank
  0 and checks them, the other broadcasts what was checked. A follower has one, which takes the broadcasts.
  The main thread takes from the last queue, ``_ready``, and so meets every envelope after its broadcast:

      leader      down_pg lane  -> _arrived ->  mesh_pg lane  -> _ready ->  main thread  ->  up_pg lane
      follower                                  mesh_pg lane  -> _ready ->  main thread

- Each queue is bounded by the depth, so a slow mesh holds back rank 0 and not the other way round. A put that
  finds no room within its bound is an error like any other.
- The leader checks an envelope on its lane, before any follower can see it: at most one rank has refused it,
  and nobody waits in a collective. It may check chunk k+1 while the main thread still computes k; hence the
  lock, and a refusal is raised by the main thread's next call. A follower's lane checks nothing: its main
  thread does when it takes the envelope, because its session must not be ahead of what it computes.
- An error of a lane goes through the same queue as the envelopes, behind those that came before it: the main
  thread finishes what was in order and then raises. A notice passes the check for the same reason.
- On CUDA all NCCL operations are issued by the main thread. It must not sleep in ``_ready`` while a computed
  result wants to leave, so the ``device`` lane waits for the kernels and puts the sending into ``_ready``.
- On the way out ``_stop_ahead`` ends the leader's broadcasting lane, which the notice needs.
"""

from __future__ import annotations

import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any, ClassVar

import msgspec

from ppwork.errors import LocalProtocolError, PeerTimeoutError, RemoteProtocolError
from ppwork.protocol.backend_errors import SILENT_PEER_CHECK
from ppwork.protocol.envelope import Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.topology import Role
from ppwork.runtime.cuda_links import CudaLinks, DeviceArrival
from ppwork.runtime.cuda_spans import DeviceSpan
from ppwork.runtime.groups import Groups
from ppwork.runtime.lanes import Lane, LaneStatistics, WatchedQueue
from ppwork.runtime.lent import Lent, copies
from ppwork.runtime.links import BroadcastReceiver, BroadcastRoot, P2PReceiver, P2PSender
from ppwork.runtime.messages import Incoming, Outgoing
from ppwork.runtime.plane import PPControlPlane, Timed

LAST = (PPAction.SHUTDOWN, PPAction.ERROR)
"""After these nothing comes any more."""

Item = Incoming | Callable[[], None] | BaseException
"""Work for the main thread: an envelope, something to issue on the device, or the end."""


class MeshPlane(PPControlPlane):
    """The end of a mesh rank; ``join`` makes a ``LeaderPlane`` or a ``FollowerPlane`` of it."""

    _inbound: ClassVar[str]
    """The link on which envelopes come to this rank."""

    def __init__(self, plan: PipelinePlan, groups: Groups, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(plan, groups, *args, **kwargs)
        # One for the SHUTDOWN behind the last chunk, one for a chunk computed on the device.
        self._ready: WatchedQueue[Item] = WatchedQueue(plan.in_flight_depth + 2)
        self._frames: deque[Incoming] = deque()
        self._computing = False
        """Whether the device computes a result that is still to be sent."""

    def receive(self) -> PPEnvelope:
        """Return the next envelope, the same on every mesh rank.

        The leader has validated it whole before the mesh saw any of it.

        Raises:
            RemoteProtocolError: It was not a legal envelope (leader before the broadcast).
            TerminalNotice: Stage 0 or the leader ended the session (the rank that receives it).
            PeerLostError, PeerTimeoutError: The sender is gone or silent.

        Collective:
            ``mesh_pg``, on its lane: one broadcast of the frame, one of each further part.

        Blocks:
            Until stage 0 sends; at most ``timeout_s``.
        """
        self._one_caller("receive")
        incoming, arrival = self._next_incoming()
        envelope: PPEnvelope = self._only_kind(incoming, PPEnvelope)
        self._admit(envelope)
        self._refuse_notice(incoming)
        if self.device is None or arrival is None:
            return envelope
        # Not before it is returned: what is launched after this waits for this chunk's tensors.
        whole: PPEnvelope = self.device.complete(self._inbound, incoming, arrival)
        return whole

    def computed(self, observed_calls: int) -> Ids:
        """Check the call count of the oldest chunk on this mesh rank and return its ids (rule R4).

        Raises:
            LocalProtocolError: The count is not the plan's (this mesh rank).
            RemoteProtocolError: A later envelope was refused meanwhile (leader).
        """
        self._one_caller("computed")
        return self.session.finished(observed_calls).ids

    def acknowledge(self) -> None:
        """Answer SHUTDOWN: the leader to rank 0, a follower by leaving.

        Blocks:
            Until rank 0 has taken everything; at most ``timeout_s``.
        """
        self._one_caller("acknowledge")
        self.session.acknowledged()

    def statistics(self) -> tuple[LaneStatistics, ...]:
        """Return how full each lane is, and the queue of what is ready."""
        return (*super().statistics(), self._ready.statistics("ready"))

    def _check(self, envelope: PPEnvelope) -> None:
        """Check an envelope on the lane that took it, before anybody else sees it."""

    def _admit(self, envelope: PPEnvelope) -> None:
        """Check an envelope on the main thread, where the lane has not."""

    def _begin_receive(self, device: CudaLinks, incoming: Incoming) -> DeviceArrival:
        """Issue the transfers of the CUDA tensors that a frame has announced."""
        raise NotImplementedError

    def _take_ahead(self, name: str, receive: Callable[[], Incoming], into: WatchedQueue[Any]) -> None:
        """Lane job: take envelopes one after another until the last one or an error."""
        try:
            while True:
                start_ns = time.monotonic_ns()
                incoming = receive()
                envelope: PPEnvelope = self._only_kind(incoming, PPEnvelope)
                # A notice is for the main thread alone: the chunk that it is computing is still in order.
                if envelope.action is not PPAction.ERROR:
                    self._check(envelope)
                self.recorder.add_span("receive", start_ns, lane=name, ids=envelope.ids.where())
                into.put(incoming, timeout=self._patience_s)
                if envelope.action in LAST:
                    return
        except BaseException as error:  # noqa: BLE001
            into.put(error, timeout=self._patience_s)

    def _next_incoming(self) -> tuple[Incoming, DeviceArrival | None]:
        """Return the next envelope; on CUDA with its transfers issued, and every earlier result sent.

        One envelope is received ahead of computing, always the next one, and its broadcast is issued between
        the kernels of two chunks: so ``mesh_pg`` and ``tp_pg`` are used in one order on every mesh rank
        (rule R7). A result is sent before the next chunk's kernels are launched: NCCL starts operations in
        the order in which the host issued them, and the result would start behind that chunk's sums.
        """
        if self.device is None:
            item = self._next_item()
            assert isinstance(item, Incoming), "without a GPU nothing is computed beside the main thread"  # noqa: S101
            return item, None
        arrival: DeviceArrival | None = None
        while arrival is None or self._computing:
            if arrival is None and self._frames:
                incoming = self._frames.popleft()
                arrival = self._begin_receive(self.device, incoming)
                continue
            item = self._next_item()
            if isinstance(item, Incoming):
                self._refuse_notice(item)
                self._frames.append(item)
            else:
                item()
        return incoming, arrival

    def _next_item(self) -> Incoming | Callable[[], None]:
        timeout_s = self._patience_s
        try:
            item = self._ready.get(timeout=timeout_s)
        except queue.Empty:
            raise PeerTimeoutError(
                f"No envelope came within {timeout_s:g} s.",
                where={"group": "mesh_pg"},
                check_first=SILENT_PEER_CHECK,
            ) from None
        if isinstance(item, BaseException):
            raise item
        return item


class LeaderPlane(MeshPlane, role=Role.LEADER):
    """The leader's end: from rank 0 to the mesh, and one result per chunk back."""

    _inbound = "down_pg"

    def __init__(self, plan: PipelinePlan, groups: Groups, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(plan, groups, *args, **kwargs)
        self._down, self._up = P2PReceiver(groups, "down_pg", plan), P2PSender(groups, "up_pg")
        self._mesh = BroadcastRoot(groups)
        self.links.update(down_pg=self._down, mesh_pg=self._mesh, up_pg=self._up)
        bound = plan.in_flight_depth + 1  # and the SHUTDOWN behind the last chunk
        self._arrived: WatchedQueue[Incoming | BaseException | None] = WatchedQueue(bound)
        self._results: deque[Future[None]] = deque()
        self._owed: list[int] = []
        """Chunks that were handed out and whose result was not sent."""
        self._lent = Lent(plan.compare_collectives, "the result of chunk", "rank 0 had it")
        self._session_lock = threading.Lock()
        self._refused: RemoteProtocolError | None = None
        if self.device is not None:
            self._lanes["device"] = Lane("device", groups.device)
        self._lanes["down_pg"].submit(partial(self._take_ahead, "down_pg", self._down.receive, self._arrived))
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
            LocalProtocolError: Tensors of a result that rank 0 may not have yet were written to, or nothing
                can come because a result was not sent (leader).
        """
        if len(self._owed) >= self.plan.in_flight_depth:
            raise self._unanswered()
        try:
            envelope = super().receive()
        except PeerTimeoutError:
            if self._owed:
                raise self._unanswered() from None  # rank 0 waits for it, and is not to blame
            raise
        if envelope.action is PPAction.INFER:
            self._owed.append(envelope.ids.chunk_index)
        self._lent.check()
        # With this chunk on its way, rank 0 has taken the result of the one that is a whole depth before it.
        self._lent.take_back(envelope.ids.chunk_index - self.plan.in_flight_depth)
        return envelope

    def send_result(self, result: PPResult, took: Timed | None = None, *, copy: bool = False) -> None:
        """Send a result to rank 0. On CUDA it leaves once the device has computed it.

        Args:
            result: Its ``stage1_ns`` is taken as it is without a GPU, and from ``took`` on one. Its tensors
                belong to the transport until ``receive`` returns the chunk a whole depth after this one.
            took: From ``timed`` around what was launched; default: all that was launched until now.
            copy: Send copies: for output buffers that are filled anew for each chunk.

        Raises:
            LocalProtocolError: Preflight refused it, or tensors of an earlier result were written to; no byte
                has left (leader).
            PeerLostError, PeerTimeoutError: An earlier result did not get through (leader).

        Blocks:
            Only while ``in_flight_depth`` results are still on their way; at most ``timeout_s``.
        """
        self._one_caller("send_result")
        if result.ids.chunk_index in self._owed:
            self._owed.remove(result.ids.chunk_index)
        self._lent.check()
        if copy:
            result = msgspec.structs.replace(result, tensors=copies(result.tensors))
        self._lent.lend(result.ids.chunk_index, result.tensors)
        if self.device is None or result.action is not PPAction.INFER:
            self._send(result)
            return
        span = None if took is None else took.on_device
        if span is None:
            with self.device.computing("result", result.ids.where()) as span:
                pass
        self._computing = True
        self._lanes["device"].submit(partial(self._await_device, result, span))

    def _unanswered(self) -> LocalProtocolError:
        return LocalProtocolError(
            f"Chunk {self._owed[0]} was received, and no result was sent for it.",
            where={"chunk_index": self._owed[0]},
            check_first="does the leader's loop call `send_result` for every chunk?",
        )

    def acknowledge(self) -> None:
        """Answer SHUTDOWN; see ``MeshPlane.acknowledge``."""
        self.send_result(PPResult(PPAction.SHUTDOWN, self.session.last_ids))
        self._await_results(1)
        super().acknowledge()

    def statistics(self) -> tuple[LaneStatistics, ...]:
        """Return how full each lane and each queue between them is."""
        return (*super().statistics(), self._arrived.statistics("arrived"))

    def _await_device(self, result: PPResult, span: DeviceSpan) -> None:
        """Lane job: wait on this thread for the device, so that the main thread stays free to issue."""
        try:
            span.wait()
            self._ready.put(partial(self._send_computed, result, span), timeout=self._patience_s)
        except BaseException as error:  # noqa: BLE001
            self._ready.put(error, timeout=self._patience_s)

    def _send_computed(self, result: PPResult, span: DeviceSpan) -> None:
        self._computing = False
        self._send(msgspec.structs.replace(result, stage1_ns=span.ns))

    def _send(self, result: PPResult) -> None:
        outgoing = self.preflight(result)
        self._await_results(self.plan.in_flight_depth)
        self._commit("result.send", result.ids)
        job = partial(self._send_on_lane, "up_pg", "send_result", outgoing)
        self._results.append(self._lanes["up_pg"].submit(job))
        if self.device is not None:
            self.device.send("up_pg", outgoing, self._up.issue)

    def _await_results(self, fewer_than: int) -> None:
        while self._results and (self._results[0].done() or len(self._results) >= fewer_than):
            self._results.popleft().result(self._patience_s)

    def _check(self, envelope: PPEnvelope) -> None:
        # On the lane: what the session refuses here must not look like the main thread's own mistake.
        with self._session_lock:
            try:
                self.session.received(envelope)
            except RemoteProtocolError as error:
                self._refused = error
                raise

    def _begin_receive(self, device: CudaLinks, incoming: Incoming) -> DeviceArrival:
        arrival = device.receive("down_pg", incoming, self._down.issue)
        device.pass_on(arrival, incoming, self._mesh.issue)
        return arrival

    def _pass_on_ahead(self) -> None:
        """Lane job: broadcast what has arrived and been checked; commitment point 2."""
        try:
            while (incoming := self._arrived.get()) is not None:
                if isinstance(incoming, BaseException):
                    self._ready.put(incoming, timeout=self._patience_s)
                    return
                ids = incoming.message.ids
                self._commit("mesh.broadcast", ids)
                with self.recorder.span("broadcast", lane="mesh_pg", ids=ids.where()):
                    self._mesh.pass_on(incoming)
                self._ready.put(incoming, timeout=self._patience_s)
                if incoming.message.action in LAST:
                    return
        except BaseException as error:  # noqa: BLE001
            self._ready.put(error, timeout=self._patience_s)

    def _notify(self, name: str, outgoing: Outgoing) -> None:
        if name == "mesh_pg":
            self._mesh.notify(outgoing.head)
        else:
            super()._notify(name, outgoing)

    def _stop_ahead(self) -> None:
        # A full queue needs no mark: the broadcast of what is in it ends or fails by itself.
        with contextlib.suppress(queue.Full):
            self._arrived.put_nowait(None)


class FollowerPlane(MeshPlane, role=Role.FOLLOWER):
    """A follower's end: it takes what the leader broadcasts."""

    _inbound = "mesh_pg"

    def __init__(self, plan: PipelinePlan, groups: Groups, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(plan, groups, *args, **kwargs)
        self._mesh = BroadcastReceiver(groups, plan)
        self.links.update(mesh_pg=self._mesh)
        self._lanes["mesh_pg"].submit(partial(self._take_ahead, "mesh_pg", self._mesh.receive, self._ready))

    def _admit(self, envelope: PPEnvelope) -> None:
        # Not on the lane: the leader may be done with the last chunk, and SHUTDOWN be here, while this rank
        # still computes it. The leader, who must check before the mesh, is never behind rank 0.
        self.session.received(envelope)

    def _begin_receive(self, device: CudaLinks, incoming: Incoming) -> DeviceArrival:
        return device.receive("mesh_pg", incoming, self._mesh.issue)
