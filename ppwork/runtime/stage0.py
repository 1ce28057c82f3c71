"""Stage 0's end of the control plane: send chunks, receive results, drain and shut down.

Up to ``in_flight_depth`` chunks are on their way while the main thread encodes and decodes. At depth 1 the
main thread posts its sends itself; at greater depths the ``down_pg`` lane does. That lane waits for the
sends, and the ``up_pg`` lane takes one answer for each. The main thread waits on ``_news`` alone, which gets
the answers, and a mark when a send breaks.
"""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Mapping
from concurrent.futures import Future, wait
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from ppwork.errors import LocalProtocolError, PeerTimeoutError
from ppwork.protocol.backend_errors import SILENT_PEER_CHECK
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.notices import notice_of
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.topology import LEADER_RANK, Role
from ppwork.runtime.groups import Groups
from ppwork.runtime.lanes import LaneStatistics, WatchedQueue, give_way, result_of, tokens
from ppwork.runtime.lent import Lent, copies
from ppwork.runtime.links import P2PReceiver, P2PSender
from ppwork.runtime.messages import Incoming
from ppwork.runtime.plane import NOTICE_TIMEOUT_S, PPControlPlane, oldest
from ppwork.runtime.tensors import check_by_name, check_kind

if TYPE_CHECKING:
    import torch


class Stage0Plane(PPControlPlane, role=Role.STAGE0):
    """Rank 0's end of the control plane."""

    _outbound, _last_call = "down_pg", "`shutdown()`"

    def __init__(self, plan: PipelinePlan, groups: Groups, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(plan, groups, *args, **kwargs)
        self._down, self._up = P2PSender(groups, "down_pg"), P2PReceiver(groups, "up_pg", plan)
        self.links.update(down_pg=self._down, up_pg=self._up)
        self._sends: deque[Future[None]] = deque()
        self._unanswered = 0
        """Number of envelopes that have left and whose answer was not taken."""
        self._owed: queue.SimpleQueue[bool] = queue.SimpleQueue()
        """Tells the ``up_pg`` lane to take one more answer; false tells it to stop."""
        self._news: WatchedQueue[Incoming | BaseException | None] = WatchedQueue(2 * plan.in_flight_depth + 4)
        """Answers, the error that ended their lane, and ``None`` for a broken send."""
        self._answers: deque[Incoming | BaseException] = deque()
        """Answers that the main thread has taken from ``_news`` and no call has returned."""
        self.lent = Lent(plan.check_buffers, "chunk", "its result had come")
        """Tensors that ``encode`` has returned: until the mesh's answer nobody may write to them."""
        self._room = tokens(plan.bounds[1])
        self._holding = False
        self._asked_ns = 0
        self._lanes["up_pg"].submit(self._take_answers)

    def send(
        self,
        tensors: Mapping[str, torch.Tensor],
        *,
        metadata: Mapping[str, Any] | None = None,
        hard_cut: bool = False,
        flush: bool = False,
        recompute: bool = False,
        steps: int | None = None,
        copy: bool = False,
    ) -> Ids:
        """Send one chunk to the mesh.

        Args:
            tensors: Dense, on the CPU or this rank's device, and contiguous unless ``copy``. They belong to
                the transport until the chunk's result has come: do not write to them before.
            metadata: Any plain data that msgpack can carry; the runtime does not read it.
            hard_cut: Reset the cache and start a new epoch at this chunk.
            flush: A hard cut that also makes everything in flight stale.
            recompute: Rebuild the cache from the ``context.*`` tensors first.
            steps: Generator calls without recompute, 1 or more; default: the plan's ``steps``.
            copy: Send copies; for buffers that are filled anew for each chunk.

        Returns:
            The ids of the envelope; its result will have the same ids.

        Raises:
            LocalProtocolError: Preflight refused the chunk, an argument is of another kind,
                ``in_flight_depth`` chunks are already on their way, or a tensor that one of these also has
                was written to; no byte has left, and a corrected call may follow (rank 0).
            TerminalNotice: An earlier chunk was refused or failed, and the leader said why (rank 0).
            PeerLostError, PeerTimeoutError: The leader is gone or silent (rank 0).

        Blocks:
            Never for the link: the next call reports a send that breaks.
        """
        self._one_caller("send")
        try:
            check_by_name(tensors)
            steps = self.plan.steps if steps is None else steps
            check_kind(int, steps=steps)
            check_kind(bool, hard_cut=hard_cut, flush=flush, recompute=recompute)
            self.lent.check(tensors)
            cut = hard_cut or flush
            ids = self.session.next_ids(PPAction.INFER, hard_cut=cut)
            chunk_plan = ChunkPlan.of(steps, recompute=recompute, reset_cache=cut)
            if copy:
                tensors = copies(tensors)
            self._send(PPEnvelope(PPAction.INFER, ids, chunk_plan, metadata or {}, tensors), flush=flush)
        except LocalProtocolError as error:
            self._goes_on(error)
            raise
        self.lent.lend(ids.chunk_index, tensors)
        self._returned(ids)
        return ids

    def heartbeat(self) -> None:
        """Tell the mesh that the source pauses and the link lives; call it as often as you like.

        It sends a NOOP, unless an envelope is still leaving, which serves as well. Raises as ``send``.
        """
        self._one_caller("heartbeat")
        if not self.sending:
            self._send(PPEnvelope(PPAction.NOOP, self.session.next_ids(PPAction.NOOP)))
        self._returned(None)

    def receive_result(self) -> tuple[PPResult, bool]:
        """Return the result of the oldest chunk in flight, and whether it is still good.

        A stale result (rule R3) is received like any other, and comes without its tensors: drop it.

        Raises:
            RemoteProtocolError: Ids or call count are not the oldest chunk's (rank 0).
            LocalProtocolError: Tensors of the chunk were written to before its result came (rank 0).
            TerminalNotice: The mesh failed and said why (rank 0).
            PeerLostError, PeerTimeoutError: The leader is gone or silent (rank 0).

        Blocks:
            Until the mesh has computed the result; at most ``timeout_s``.
        """
        self._one_caller("receive_result")
        result = self._take_answer()
        self.lent.take_back(result.ids.chunk_index)
        self._holding = True
        result = result if (good := self.session.result(result)) else replace(result, tensors={})
        self._returned(result, good=good)
        return result, good

    def await_result(self) -> None:
        """Wait until ``receive_result`` can return a result at once; raises and blocks as it does."""
        self._one_caller("await_result")
        self._await_answer()
        self._returned(None)

    @property
    def results_ready(self) -> int:
        """Number of results that have arrived at rank 0 and were not taken."""
        # The news may also be of a broken send, which is no result.
        return min(self._unanswered, len(self._answers) + self._news.waiting())

    @property
    def sending(self) -> bool:
        """Whether some envelope is still leaving."""
        return any(not sent.done() for sent in self._sends)

    def release_result(self) -> None:
        """Report that the last result was decoded or dropped, so that one more may arrive (``d_out``).

        A wait for the next result reports this, too.
        """
        self._one_caller("release_result")
        self._release()
        self._returned(None)

    def shutdown(self) -> None:
        """Tell the mesh that the stream has ended, and wait for the acknowledgement (rule R10).

        Raises:
            LocalProtocolError: Something is still in flight: drain first.
            RemoteProtocolError: Rank 0 received something other than the acknowledgement (rank 0).
            TerminalNotice, PeerLostError, PeerTimeoutError: As ``receive_result``.
        """
        self._one_caller("shutdown")
        try:
            self._send(PPEnvelope(PPAction.SHUTDOWN, self.session.next_ids(PPAction.SHUTDOWN)))
        except LocalProtocolError as error:
            self._goes_on(error)
            raise
        self.session.acknowledged(self._take_answer())
        for sent in self._sends:
            result_of(sent, self._patience_s, what="send", group="down_pg", peer=LEADER_RANK)

    @property
    def at(self) -> Ids:
        """The oldest chunk in flight, whose result comes next; else the last action sent."""
        first = oldest(self.session.in_flight)
        return self.session.last_ids if first is None else first.ids

    def statistics(self) -> tuple[LaneStatistics, ...]:
        """Return how full each lane is; for ``up_pg``, how full the queue of its answers is."""
        down, _ = super().statistics()
        return down, self._news.statistics("up_pg")

    def _send(self, envelope: PPEnvelope, *, flush: bool = False) -> None:
        ids = envelope.ids
        if envelope.action is PPAction.INFER and len(self._sends) > self.plan.in_flight_depth + 1:
            # The chunk was answered, so it has left; on a busy machine its lane may not know that yet.
            wait([self._sends[0]], self._patience_s)
        self._report_broken_sends()
        start_ns = time.monotonic_ns()
        try:
            self.session.may_send(envelope)
            outgoing = self.preflight(envelope)
        except LocalProtocolError as error:
            self.recorder.add_span("preflight", start_ns, ids=ids.where())
            error.at(rank=self.groups.rank, role=str(self.role), **ids.where())
            raise
        self.recorder.add_span("preflight", start_ns, ids=ids.where(), more=True)
        self._commit("envelope.send", ids)
        sent = self._send_out("down_pg", "send", outgoing)
        self._sends.append(sent)
        if envelope.action is not PPAction.NOOP:
            # Now, and not after it has left: if the leader refuses this envelope while the send waits, a
            # receive must be posted for the notice. A heartbeat has no answer: a receive posted for it would
            # reach its bound while the source pauses.
            self._unanswered += 1
            self._owed.put(True)
        sent.add_done_callback(self._tell_if_broken)
        if self.device is not None:
            self.device.send("down_pg", outgoing, self._down.issue)
        self.session.sent(envelope, flush=flush)

    def _tell_if_broken(self, sent: Future[None]) -> None:
        # Report a broken send at once, not when the bound on the answer passes.
        if sent.exception() is not None:
            self._news.put_last(None)

    def _take_answers(self) -> None:
        """Lane job: receive the answers one after another."""
        try:
            while self._owed.get():
                incoming = self._receive_answer()
                at_ns, ids = time.monotonic_ns(), incoming.message.ids.where()
                self._news.put(incoming, timeout=self._patience_s)
                del incoming  # the main thread owns it
                self.recorder.instant("arrive", lane="up_pg", ids=ids, at_ns=at_ns)
                give_way()
        except BaseException as error:  # noqa: BLE001
            self._news.put_last(error)

    def _receive_answer(self) -> Incoming:
        """Receive the next answer, once fewer than ``d_out`` results wait for their decode."""
        try:
            self._room.get(timeout=self._patience_s)
        except queue.Empty:
            raise PeerTimeoutError(
                f"No result was decoded within {self._patience_s:g} s, so none could be received.",
                where={"group": "up_pg"},
                check_first="how long does rank 0 take to decode, and does it ask for every result?",
            ) from None
        return self._up.receive()

    def _stop_ahead(self) -> None:
        self._owed.put(False)

    def _release(self) -> None:
        if self._holding:
            self._holding = False
            self._room.put(None)

    def _await_answer(self) -> None:
        self._release()
        self._report_broken_sends()
        if not self._unanswered:
            raise LocalProtocolError(
                "A result was asked for, but nothing was in flight.",
                where={"rank": self.groups.rank, "role": str(self.role)},
                check_first="each receive_result needs a send before it",
            )
        self._asked_ns = self._asked_ns or time.monotonic_ns()
        while not self._answers:
            try:
                news = self._news.get(self._patience_s)
            except queue.Empty:
                raise PeerTimeoutError(
                    f"No answer to call {self.at.call_id} came within {self._patience_s:g} s.",
                    where={"group": "up_pg", "peer": LEADER_RANK, **self.at.where()},
                    check_first=SILENT_PEER_CHECK,
                ) from None
            if news is not None:
                self._answers.append(news)
            if not isinstance(news, Incoming):
                self._report_broken_sends()

    def _take_answer(self) -> PPResult:
        self._await_answer()
        if isinstance(incoming := self._answers[0], BaseException):
            raise incoming  # the next call raises it again
        self._answers.popleft()
        self._unanswered -= 1
        start_ns, self._asked_ns = self._asked_ns, 0
        self.recorder.add_span("receive", start_ns, lane="up_pg", ids=incoming.message.ids.where())
        self._refuse_notice(incoming)
        result: PPResult = self._only_kind(incoming, PPResult)
        if self.device is None:
            return result
        # Not together with its envelope: in NCCL's order of launches, a receive that waits for its result
        # delays every envelope that is sent after the next one (docs/gpu.md).
        self.device.reserve("up_pg", incoming)
        self.device.receive("up_pg", incoming, self._up.issue)
        whole: PPResult = self.device.complete("up_pg", incoming)
        return whole

    def _report_broken_sends(self) -> None:
        while self._sends and self._sends[0].done():
            error = self._sends.popleft().exception()
            if error is not None:
                self._prefer_notice(error)
                raise error

    def _prefer_notice(self, error: BaseException) -> None:
        """Raise the leader's notice if there is one: it says why, and a broken send is only a symptom."""
        for _ in range(self._unanswered):  # nothing more will be decoded
            self._room.put(None)
        deadline = time.monotonic() + NOTICE_TIMEOUT_S
        while self._unanswered:
            remaining_s = max(0.0, deadline - time.monotonic())
            try:
                news = self._answers.popleft() if self._answers else self._news.get(remaining_s)
            except queue.Empty:
                return
            if isinstance(news, BaseException):
                return  # the leader is gone without a notice: the broken send stays the error
            if news is None:
                continue
            self._unanswered -= 1
            if news.message.reason is not None:
                raise notice_of(news.message.reason, self.groups.rank, self.role) from error
