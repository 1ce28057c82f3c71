"""The mesh's end of the control plane: envelopes in, the same on every mesh rank; one result out per chunk.

Receiving runs ahead of computing (rule R7): on the leader one lane takes envelopes from rank 0 and another
broadcasts them, on a follower one lane takes the broadcasts. Each queue between them is bounded by the depth,
so a slow mesh holds back rank 0 and not the other way round.
"""

from __future__ import annotations

import contextlib
import queue
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from ppwork.envelope import Ids, PPAction, PPEnvelope, PPResult
from ppwork.errors import RemoteProtocolError
from ppwork.lanes import LaneStatistics, WatchedQueue
from ppwork.links import Receiver, Sender
from ppwork.mesh_inbox import Computed, MeshInbox
from ppwork.mesh_links import MeshFollower, MeshLeader
from ppwork.topology import Role

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from ppwork.plane import Timed
    from ppwork.transport import Incoming, Outgoing

LAST = (PPAction.SHUTDOWN, PPAction.ERROR)
"""After these nothing comes any more."""


class MeshEnd(MeshInbox):
    """The calls of the leader and of the followers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  as ``Plane``
        super().__init__(*args, **kwargs)
        bound = self.plan.in_flight_depth + 1  # and the SHUTDOWN behind the last chunk
        self._arrived: WatchedQueue[Incoming | BaseException | None] = WatchedQueue(bound)
        self._results: deque[Future[None]] = deque()
        self._refused: RemoteProtocolError | None = None
        if self.role is Role.LEADER:
            self._mesh = MeshLeader(self.groups)
            down = Receiver(self.groups, "down_pg", self.plan)
            self._issue_mesh, self._issue_down = self._mesh.issue, down.issue
            self._results_out = Sender(self.groups, "up_pg")
            self._lanes["down_pg"].submit(partial(self._take_ahead, "down_pg", down.receive, self._arrived))
            self._lanes["mesh_pg"].submit(self._pass_on_ahead)
        elif self.role is Role.FOLLOWER:
            mesh = MeshFollower(self.groups, self.plan)
            self._issue_mesh = mesh.issue
            self._lanes["mesh_pg"].submit(partial(self._take_ahead, "mesh_pg", mesh.receive, self._ready))

    def receive(self) -> PPEnvelope:
        """Return the next envelope, the same on every mesh rank; leader and followers only.

        The leader has validated it whole before the mesh saw any of it.

        Raises:
            RemoteProtocolError: It was not a legal envelope (leader before the broadcast).
            TerminalNotice: Stage 0 or the leader ended the session (whoever receives it).
            PeerLostError, PeerTimeoutError: The sender is gone or silent.

        Collective:
            ``mesh_pg``, on its lane: one broadcast of the frame, one of each further part.

        Blocks:
            Until stage 0 sends; at most ``timeout_s``.
        """
        self._only("receive", Role.LEADER, Role.FOLLOWER)
        incoming, landed = self._next_incoming()
        envelope: PPEnvelope = self._only_kind(incoming, PPEnvelope)
        if self.role is Role.FOLLOWER:
            # Not on the lane: the leader may be done with the last chunk, and SHUTDOWN be here, while this
            # rank still computes it. The leader, who must check before the mesh, is never behind rank 0.
            self.session.received(envelope)
        self._refuse_notice(incoming)
        if self.device is None or landed is None:
            return envelope
        # Not before it is returned: whatever is launched after this waits for this chunk's tensors.
        link = "down_pg" if self.role is Role.LEADER else "mesh_pg"
        whole: PPEnvelope = self.device.complete(link, incoming, landed)
        return whole

    def computed(self, observed_calls: int) -> Ids:
        """Check the call count of the oldest chunk on this mesh rank and return its ids (rule R4).

        Raises:
            LocalProtocolError: The count is not the plan's (this mesh rank).
            RemoteProtocolError: A later envelope was refused meanwhile (leader).
        """
        self._only("computed", Role.LEADER, Role.FOLLOWER)
        with self._session_lock:
            if self._refused is not None:
                raise self._refused
            return self.session.finished(observed_calls).ids

    def send_result(self, result: PPResult, took: Timed | None = None) -> None:
        """Send a result to rank 0; leader only. On CUDA it leaves once the device has computed it.

        Args:
            result: Its ``stage1_ns`` is taken as it is without a GPU, and from ``took`` on one.
            took: From ``timed`` around what was launched; default: all that was launched until now.

        Raises:
            LocalProtocolError: Preflight refused it; no byte has left (leader).
            PeerLostError, PeerTimeoutError: An earlier result did not get through (leader).

        Blocks:
            Only while ``in_flight_depth`` results are still on their way; at most ``timeout_s``.
        """
        self._only("send_result", Role.LEADER)
        if self.device is None or result.action is not PPAction.INFER:
            self._send_result(result)
            return
        span = None if took is None else took.on_device
        if span is None:
            with self.device.computing("result", result.ids) as span:
                pass
        self._computing = True
        self._lanes["device"].submit(partial(self._await_device, Computed(result, span)))

    def _send_result(self, result: PPResult) -> None:
        outgoing = self._preflight(result)
        self._await_results(self.plan.in_flight_depth)
        self._commit("result.send", result.ids)
        self._results.append(self._lanes["up_pg"].submit(partial(self._send_up, outgoing)))
        if self.device is not None:
            self.device.send("up_pg", outgoing, self._results_out.issue)

    def acknowledge(self) -> None:
        """Answer SHUTDOWN: the leader to rank 0, a follower by leaving.

        Blocks:
            Until rank 0 has taken everything; at most ``timeout_s``.
        """
        self._only("acknowledge", Role.LEADER, Role.FOLLOWER)
        if self.role is Role.LEADER:
            self.send_result(PPResult(PPAction.SHUTDOWN, self.session.last_ids))
            self._await_results(1)
        self.session.acknowledged()

    def statistics(self) -> tuple[LaneStatistics, ...]:
        """Return how full each lane and each queue between them is."""
        queues: dict[str, WatchedQueue[Any]] = {"arrived": self._arrived, "ready": self._ready}
        mine = queues if self.role is not Role.STAGE0 else {}
        return (*super().statistics(), *(q.statistics(name) for name, q in mine.items()))

    def _await_results(self, fewer_than: int) -> None:
        while self._results and (self._results[0].done() or len(self._results) >= fewer_than):
            self._results.popleft().result(self._patience)

    def _send_up(self, outgoing: Outgoing) -> None:
        """Lane job."""
        with self.recorder.span("send_result", lane="up_pg", ids=outgoing.message.ids.where()):
            self._results_out.send(outgoing)

    def _check(self, envelope: PPEnvelope) -> None:
        """Lane job's part: what the session refuses here must not look like the main thread's own mistake."""
        with self._session_lock:
            try:
                self.session.received(envelope)
            except RemoteProtocolError as error:
                self._refused = error
                raise

    def _take_ahead(
        self,
        name: str,
        receive: Callable[[], Incoming],
        into: queue.Queue[Any],
    ) -> None:
        """Lane job: take envelopes one after another until the last one or an error; the leader checks."""
        try:
            while True:
                start_ns = time.monotonic_ns()
                incoming = receive()
                envelope: PPEnvelope = self._only_kind(incoming, PPEnvelope)
                # A notice is for the main thread alone: the chunk that it is computing is still in order.
                if self.role is Role.LEADER and envelope.action is not PPAction.ERROR:
                    self._check(envelope)
                self.recorder.add_span("receive", start_ns, lane=name, ids=envelope.ids.where())
                into.put(incoming, timeout=self._patience)
                if envelope.action in LAST:
                    return
        except BaseException as error:  # noqa: BLE001  it belongs to the main thread, behind what came before it
            into.put(error, timeout=self._patience)

    def _pass_on_ahead(self) -> None:
        """Lane job of the leader: broadcast what has arrived and been checked; commitment point 2."""
        try:
            while (incoming := self._arrived.get()) is not None:
                if isinstance(incoming, BaseException):
                    self._ready.put(incoming, timeout=self._patience)
                    return
                ids = incoming.message.ids
                self._commit("mesh.broadcast", ids)
                with self.recorder.span("broadcast", lane="mesh_pg", ids=ids.where()):
                    self._mesh.pass_on(incoming)
                self._ready.put(incoming, timeout=self._patience)
                if incoming.message.action in LAST:
                    return
        except BaseException as error:  # noqa: BLE001  as above
            self._ready.put(error, timeout=self._patience)

    def _notify(self, name: str, outgoing: Outgoing) -> None:
        if name == "mesh_pg":
            self._mesh.notify(outgoing.control)
        else:
            super()._notify(name, outgoing)

    def _stop_ahead(self) -> None:
        if self.role is Role.LEADER:
            # A full queue needs no mark: the broadcast of what is in it ends or fails by itself.
            with contextlib.suppress(queue.Full):
                self._arrived.put_nowait(None)
