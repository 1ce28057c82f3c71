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
from ppwork.errors import PeerTimeoutError
from ppwork.lanes import LaneStatistics
from ppwork.plane import Plane
from ppwork.topology import Role
from ppwork.transport import Incoming, Move, broadcaster, preflight, receive, receiver

if TYPE_CHECKING:
    from concurrent.futures import Future

LAST = (PPAction.SHUTDOWN, PPAction.ERROR)
"""After these nothing comes any more."""


class MeshEnd(Plane):
    """The calls of the leader and of the followers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  as ``Plane``
        super().__init__(*args, **kwargs)
        bound = self.plan.in_flight_depth + 1  # and the SHUTDOWN behind the last chunk
        self._arrived: queue.Queue[Incoming | BaseException | None] = queue.Queue(bound)
        self._ready: queue.Queue[Incoming | BaseException | None] = queue.Queue(bound)
        self._results: deque[Future[None]] = deque()
        if self.role is Role.LEADER:
            self._lanes["down_pg"].submit(partial(self._take_ahead, "down_pg", self._arrived))
            self._lanes["mesh_pg"].submit(self._pass_on_ahead)
        elif self.role is Role.FOLLOWER:
            self._lanes["mesh_pg"].submit(partial(self._take_ahead, "mesh_pg", self._ready))

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
        incoming = _next(self._ready, self._patience)
        envelope: PPEnvelope = self._only_kind(incoming, PPEnvelope)
        if self.role is Role.FOLLOWER:
            # Not on the lane: the leader may be done with the last chunk, and SHUTDOWN be here, while this
            # rank still computes it. The leader, who must check before the mesh, is never behind rank 0.
            self.session.received(envelope)
        self._refuse_notice(incoming)
        return envelope

    def computed(self, observed_calls: int) -> Ids:
        """Check the call count of the oldest chunk on this mesh rank and return its ids (rule R4).

        Raises:
            LocalProtocolError: The count is not the plan's (this mesh rank).
        """
        with self._session_lock:
            return self.session.finished(observed_calls).ids

    def send_result(self, result: PPResult) -> None:
        """Send a result to rank 0; leader only.

        Raises:
            LocalProtocolError: Preflight refused it; no byte has left (leader).
            PeerLostError, PeerTimeoutError: An earlier result did not get through (leader).

        Blocks:
            Only while ``in_flight_depth`` results are still on their way; at most ``timeout_s``.
        """
        self._only("send_result", Role.LEADER)
        outgoing = preflight(result, self._encoder, self.groups.device)
        self._await_results(self.plan.in_flight_depth)
        self._commit("result.send", result.ids)
        job = partial(self._move, "up_pg", "send_result", outgoing, result.ids)
        self._results.append(self._lanes["up_pg"].submit(job))

    def acknowledge(self) -> None:
        """Answer SHUTDOWN: the leader to rank 0, a follower by leaving.

        Blocks:
            Until rank 0 has taken everything; at most ``timeout_s``.
        """
        if self.role is Role.LEADER:
            self.send_result(PPResult(PPAction.SHUTDOWN, self.session.last_ids))
            self._await_results(1)
        self.session.acknowledged()

    def statistics(self) -> tuple[LaneStatistics, ...]:
        """Return how full each lane and each queue between them is."""
        queues = {"arrived": self._arrived, "ready": self._ready}
        mine = queues if self.role is not Role.STAGE0 else {}
        return (*super().statistics(), *(LaneStatistics(n, q.qsize(), q.maxsize, 0) for n, q in mine.items()))

    def _await_results(self, fewer_than: int) -> None:
        while self._results and (self._results[0].done() or len(self._results) >= fewer_than):
            self._results.popleft().result(self._patience)

    def _take_ahead(self, name: str, into: queue.Queue[Incoming | BaseException | None]) -> None:
        """Lane job: take envelopes one after another until the last one or an error; the leader checks."""
        move: Move = receiver(self.groups, name) if name == "down_pg" else broadcaster(self.groups)
        try:
            while True:
                start_ns = time.monotonic_ns()
                incoming = receive(self._decoder, self.groups.device, move)
                envelope: PPEnvelope = self._only_kind(incoming, PPEnvelope)
                if self.role is Role.LEADER:
                    with self._session_lock:
                        self.session.received(envelope)
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
                self._move("mesh_pg", "broadcast", incoming, ids)
                self._ready.put(incoming, timeout=self._patience)
                if incoming.message.action in LAST:
                    return
        except BaseException as error:  # noqa: BLE001  as above
            self._ready.put(error, timeout=self._patience)

    def _stop_ahead(self) -> None:
        if self.role is Role.LEADER:
            # A full queue needs no mark: the broadcast of what is in it ends or fails by itself.
            with contextlib.suppress(queue.Full):
                self._arrived.put_nowait(None)


def _next(source: queue.Queue[Incoming | BaseException | None], timeout_s: float) -> Incoming:
    try:
        item = source.get(timeout=timeout_s)
    except queue.Empty:
        raise PeerTimeoutError(
            f"No envelope came within {timeout_s:g} s.",
            where={"group": "mesh_pg"},
            check_first="is rank 0 alive and what was its last commitment point? its log says",
        ) from None
    if isinstance(item, BaseException):
        raise item
    assert item is not None, "the mark that stops the lane never reaches the main thread"  # noqa: S101
    return item
