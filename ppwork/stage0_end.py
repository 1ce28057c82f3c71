"""Stage 0's end of the control plane: send chunks, receive results, drain and shut down.

Sends run on the ``down_pg`` lane and receives on the ``up_pg`` lane, so up to ``in_flight_depth`` chunks are
on their way while the main thread encodes and decodes. At depth 1 a send follows the last result anyway.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from ppwork.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult
from ppwork.errors import LocalProtocolError, PeerTimeoutError, PPWorkError
from ppwork.lanes import first_done, result_of
from ppwork.links import Receiver, Sender
from ppwork.notices import notice_of
from ppwork.plane import NOTICE_TIMEOUT_S, Plane
from ppwork.topology import Role

if TYPE_CHECKING:
    from collections.abc import Mapping
    from concurrent.futures import Future

    import torch

    from ppwork.transport import Incoming, Outgoing


class Stage0End(Plane):
    """The calls of rank 0."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  as ``Plane``
        super().__init__(*args, **kwargs)
        self._sends: deque[Future[None]] = deque()
        self._answers: deque[Future[Incoming]] = deque()
        self._room = threading.Semaphore(self.plan.bounds[1])
        self._holding = False
        self._asked_ns = 0
        if self.role is Role.STAGE0:
            self._down = Sender(self.groups, "down_pg")
            self._results_in = Receiver(self.groups, "up_pg", self.plan)

    def send(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        metadata: Mapping[str, Any] | None = None,
        hard_cut: bool = False,
        flush: bool = False,
        recompute: bool = False,
    ) -> Ids:
        """Send one chunk to the mesh; stage 0 only.

        Args:
            tensors: Dense, contiguous, on the CPU or this rank's device. They belong to the transport until
                the chunk's result has come: do not write to them before.
            metadata: Anything plain that msgpack carries; goes along unread.
            hard_cut: Reset the cache and start a new epoch at this chunk.
            flush: A hard cut that also makes everything in flight stale.
            recompute: Rebuild the cache from the ``context.*`` tensors first.

        Returns:
            The ids that the envelope bore; its result will bear the same.

        Raises:
            LocalProtocolError: Preflight refused it, or ``in_flight_depth`` chunks are on their way already;
                no byte has left (rank 0).
            TerminalNotice: An earlier chunk was refused or failed, and the leader said why (rank 0).
            PeerLostError, PeerTimeoutError: The leader is gone or silent (rank 0).

        Blocks:
            Never for the link: a send that breaks is reported by the next call.
        """
        self._only("send", Role.STAGE0)
        cut = hard_cut or flush
        ids = self.session.next_ids(PPAction.INFER, hard_cut=cut)
        chunk_plan = ChunkPlan.of(self.plan.denoise_steps, recompute=recompute, reset_cache=cut)
        self._send(PPEnvelope(PPAction.INFER, ids, chunk_plan, metadata or {}, tensors), flush=flush)
        return ids

    def heartbeat(self) -> None:
        """Send a NOOP: the source pauses, the link lives; stage 0 only. Raises as ``send``."""
        self._only("heartbeat", Role.STAGE0)
        self._send(PPEnvelope(PPAction.NOOP, self.session.next_ids(PPAction.NOOP)))

    def receive_result(self) -> tuple[PPResult, bool]:
        """Return the result of the oldest chunk in flight, and whether it is still good; stage 0 only.

        A stale result (rule R3) is received like any other and must be dropped by the caller.

        Raises:
            RemoteProtocolError: Ids or call count are not the oldest chunk's (rank 0).
            TerminalNotice: The mesh failed and said why (rank 0).
            PeerLostError, PeerTimeoutError: The leader is gone or silent (rank 0).

        Blocks:
            Until the mesh has computed it; at most ``timeout_s``.
        """
        self._only("receive_result", Role.STAGE0)
        result = self._take_answer()
        self._holding = True
        return result, self.session.result(result)

    def await_result(self) -> None:
        """Wait until a result is here and leave it for ``receive_result``; raises and blocks as that."""
        self._only("await_result", Role.STAGE0)
        self._await_answer()

    @property
    def results_here(self) -> int:
        """Number of results that have arrived at rank 0 and were not taken."""
        return sum(answer.done() for answer in self._answers)

    @property
    def sending(self) -> bool:
        """Whether an envelope has not left to its end."""
        return any(not sent.done() for sent in self._sends)

    def release_result(self) -> None:
        """Say that the last result was decoded or dropped, so that one more may arrive (``d_out``).

        Waiting for the next result says it, too.
        """
        self._only("release_result", Role.STAGE0)
        if self._holding:
            self._holding = False
            self._room.release()

    def shutdown(self) -> None:
        """Say that the stream has ended and wait for the acknowledgement; stage 0 only (rule R10).

        Raises:
            LocalProtocolError: Something is still in flight: drain first.
            RemoteProtocolError: Something else than the acknowledgement came (rank 0).
            TerminalNotice, PeerLostError, PeerTimeoutError: As ``receive_result``.
        """
        self._only("shutdown", Role.STAGE0)
        self._send(PPEnvelope(PPAction.SHUTDOWN, self.session.next_ids(PPAction.SHUTDOWN)))
        self.session.acknowledged(self._take_answer())

    def _send(self, envelope: PPEnvelope, *, flush: bool = False) -> None:
        ids = envelope.ids
        self._report_broken_sends()
        with self.recorder.span("preflight", ids=ids.where()):
            try:
                self.session.may_send(envelope)
                outgoing = self._preflight(envelope)
            except LocalProtocolError as error:
                error.at(rank=self.groups.rank, role=str(self.role), **ids.where())
                raise
        if envelope.action is not PPAction.NOOP:
            # Before the send: if the leader refuses this envelope, its notice must find a receiver while our
            # send still waits for its tensors to be taken. A heartbeat has no answer, and a receive posted
            # for it would run into its bound while the source pauses.
            self._answers.append(self._lanes["up_pg"].submit(self._receive_answer))
        self._commit("envelope.send", ids)
        self._sends.append(self._lanes["down_pg"].submit(partial(self._send_down, outgoing)))
        if self.device is not None:
            self.device.send("down_pg", outgoing, self._down.issue)
        self.session.sent(envelope, flush=flush)

    def _send_down(self, outgoing: Outgoing) -> None:
        """Lane job."""
        with self.recorder.span("send", lane="down_pg", ids=outgoing.message.ids.where()):
            self._down.send(outgoing)

    def _receive_answer(self) -> Incoming:
        """Lane job: take the next answer, once fewer than ``d_out`` results wait for their decode."""
        if not self._room.acquire(timeout=self._patience):
            raise PeerTimeoutError(
                f"No result was decoded within {self._patience:g} s, so none could be received.",
                where={"group": "up_pg"},
                check_first="how long does stage 0 take to decode?",
            )
        incoming = self._results_in.receive()
        self.recorder.instant("arrive", lane="up_pg", ids=incoming.message.ids.where())
        return incoming

    def _await_answer(self) -> Future[Incoming]:
        self.release_result()
        if not self._answers:
            raise LocalProtocolError(
                "A result was asked for, but nothing was in flight.",
                where={"rank": self.groups.rank, "role": str(self.role)},
                check_first="each receive_result needs a send before it",
            )
        answer, self._asked_ns = self._answers[0], self._asked_ns or time.monotonic_ns()
        while not answer.done():
            # A send that breaks must be heard at once, not when the answer's own bound passes.
            watched: list[Future[Any]] = [answer, *self._sends]
            first_done(watched, self._patience, what="receive", group="up_pg", peer=1)
            self._report_broken_sends()
        return answer

    def _take_answer(self) -> PPResult:
        answer = self._await_answer()
        self._answers.popleft()
        incoming = answer.result()
        start_ns, self._asked_ns = self._asked_ns, 0
        self.recorder.add_span("receive", start_ns, lane="up_pg", ids=incoming.message.ids.where())
        self._refuse_notice(incoming)
        result: PPResult = self._only_kind(incoming, PPResult)
        if self.device is None:
            return result
        arrival = self.device.receive("up_pg", incoming, self._results_in.issue)
        whole: PPResult = self.device.complete("up_pg", incoming, arrival)
        return whole

    def _report_broken_sends(self) -> None:
        while self._sends and self._sends[0].done():
            error = self._sends.popleft().exception()
            if error is not None:
                self._prefer_notice(error)
                raise error

    def _prefer_notice(self, error: BaseException) -> None:
        """A broken send is a symptom; if the leader managed to say why, that is the news."""
        self._room.release(len(self._answers) or 1)  # nothing will be decoded any more
        deadline = time.monotonic() + NOTICE_TIMEOUT_S
        while self._answers:
            left = max(0.0, deadline - time.monotonic())
            try:
                answer = self._answers.popleft()
                incoming = result_of(answer, left, what="notice", group="up_pg", peer=1)
            except PPWorkError:
                return  # the leader is gone without a word: the broken send stays the news
            if incoming.message.reason is not None:
                raise notice_of(incoming.message.reason, self.groups.rank, self.role) from error
