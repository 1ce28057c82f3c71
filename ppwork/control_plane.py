"""``PPControlPlane``: the whole runtime of one rank, as a prototype of yours would use it.

Stage 0 sends and receives results; the leader receives and sends results; a follower receives.
Behind each call stand the session's rules, preflight, the lanes and the commitment points. Whatever goes
wrong goes through ``fail``, which tells the peers before this rank leaves.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from ppwork.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult
from ppwork.errors import LocalProtocolError, PPWorkError, RemoteProtocolError
from ppwork.groups import join
from ppwork.lanes import Lane, LaneStatistics, first_done, result_of
from ppwork.notices import notice_of, notices
from ppwork.protocol import COMMITMENT_POINTS, Session
from ppwork.timeline import Recorder
from ppwork.topology import Role
from ppwork.transport import (
    Incoming,
    broadcaster,
    limits_of,
    move_all,
    preflight,
    receive,
    receiver,
    sender,
)
from ppwork.wire import Decoder, Encoder

if TYPE_CHECKING:
    from concurrent.futures import Future

    import torch

    from ppwork.groups import Groups
    from ppwork.plan import Plan

log = logging.getLogger(__name__)

NOTICE_TIMEOUT_S = 1.0
"""How long a failing rank tries to tell each peer before it leaves anyway: crash beats hang."""

LANES = {
    Role.STAGE0: ("down_pg", "up_pg"),
    Role.LEADER: ("down_pg", "mesh_pg", "up_pg"),
    Role.FOLLOWER: ("mesh_pg",),
}

Hook = Callable[[str, Ids], None]
"""Called just before each of ``protocol.COMMITMENT_POINTS``; may raise, for those who break things."""


class PPControlPlane:
    """One rank's end of the pipeline.

    Args:
        plan: What the ranks agreed on.
        groups: From ``groups.join``; the plane closes them at the end of its ``with`` block.
        recorder: Gets a span for each step and an instant at each commitment point.
        hook: See ``Hook``.
    """

    def __init__(self, plan: Plan, groups: Groups, recorder: Recorder, hook: Hook | None = None) -> None:
        self.plan = plan
        self.groups = groups
        self.recorder = recorder
        self.session = Session(groups.rank, groups.role, plan.in_flight_depth)
        self._hook = hook
        self._lanes = {name: Lane(name, groups.device) for name in LANES[groups.role]}
        limits = limits_of(plan)
        self._encoder, self._decoder = Encoder(limits), Decoder(limits)
        self._expected_result: Future[Incoming] | None = None
        self._told = False
        self.session.joined()

    @classmethod
    def join(
        cls, plan: Plan, *, recorder: Recorder | None = None, hook: Hook | None = None
    ) -> PPControlPlane:
        """Bring up this process as the rank that torchrun's environment says it is; see ``groups.join``.

        Use it as a context manager: the end of the block closes the groups, an exception tells the peers.

        Collective:
            All ranks, once, before anything else of ``torch.distributed``.
        """
        rank, local_rank, world_size = (int(os.environ[k]) for k in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
        groups = join(plan, rank=rank, local_rank=local_rank, world_size=world_size)
        return cls(plan, groups, recorder or Recorder(None), hook)

    @property
    def role(self) -> Role:
        """What this rank does."""
        return self.groups.role

    def __enter__(self) -> PPControlPlane:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """After SHUTDOWN: leave in order (rule R10). After an exception: tell the peers, let it pass on."""
        if error is not None:
            # The groups stay as they are: destroying them would wait for peers that may be gone.
            self.fail(error)
            return
        for lane in self._lanes.values():
            lane.close(NOTICE_TIMEOUT_S)
        self.groups.close()

    # Stage 0

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
            tensors: Dense, contiguous, on the CPU or this rank's device.
            metadata: Anything msgpack carries; goes along unread.
            hard_cut: Reset the cache and start a new epoch at this chunk.
            flush: A hard cut that also makes everything in flight stale.
            recompute: Rebuild the cache from the ``context.*`` tensors first.

        Returns:
            The ids that the envelope bore; its result will bear the same.

        Raises:
            LocalProtocolError: Preflight refused it; no byte has left (rank 0).
            TerminalNotice: The leader refused it and said why (rank 0).
            PeerLostError, PeerTimeoutError: The leader is gone or silent (rank 0).

        Blocks:
            Until the leader has taken all of it; at most ``timeout_s``.
        """
        cut = hard_cut or flush
        ids = self.session.next_ids(PPAction.INFER, hard_cut=cut)
        chunk_plan = ChunkPlan.of(self.plan.denoise_steps, recompute=recompute, reset_cache=cut)
        envelope = PPEnvelope(PPAction.INFER, ids, chunk_plan, metadata or {}, tensors)
        self._send_envelope(envelope, flush=flush)
        return ids

    def heartbeat(self) -> None:
        """Send a NOOP: the source pauses, the link lives; stage 0 only. Raises and blocks as ``send``."""
        self._send_envelope(PPEnvelope(PPAction.NOOP, self.session.next_ids(PPAction.NOOP)))

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
        result = self._take_result()
        return result, self.session.result(result)

    def shutdown(self) -> None:
        """Say that the stream has ended and wait for the acknowledgement; stage 0 only (rule R10).

        Raises:
            LocalProtocolError: Something is still in flight: drain first.
            TerminalNotice, PeerLostError, PeerTimeoutError: As ``send``.
        """
        self._send_envelope(PPEnvelope(PPAction.SHUTDOWN, self.session.next_ids(PPAction.SHUTDOWN)))
        result = self._take_result()
        if result.action is not PPAction.SHUTDOWN:
            raise RemoteProtocolError(
                f"A {result.action.name} came in place of the acknowledgement of SHUTDOWN.",
                where={"peer": 1, **result.ids.where()},
                check_first="the leader's log around this call_id",
            )
        self.session.acknowledged()

    def _send_envelope(self, envelope: PPEnvelope, *, flush: bool = False) -> None:
        ids = envelope.ids
        with self.recorder.span("preflight", ids=ids.where()):
            try:
                self.session.may_send(envelope)
                outgoing = preflight(envelope, self._encoder, self.groups.device)
            except LocalProtocolError as error:
                error.at(rank=self.groups.rank, role=str(self.groups.role), **ids.where())
                raise
        # Posted before the send: if the leader refuses the envelope, its notice must find a receiver
        # while our send is still waiting for it to take the tensors.
        # A heartbeat has no answer, and a receive posted for it would run into its bound while we pause.
        answer = self._expect_result() if envelope.action is not PPAction.NOOP else self._expected_result
        self._commit("envelope.send", ids)
        with self.recorder.span("send", lane="down_pg", ids=ids.where()):
            move = sender(self.groups, "down_pg")
            sent = self._lanes["down_pg"].submit(lambda: move_all(outgoing.parts, move))
            try:
                watched: list[Future[Any]] = [sent] if answer is None else [sent, answer]
                ended = first_done(watched, self._patience, what="send", group="down_pg", peer=1)
                if answer is not None and ended is answer:
                    self._refuse_notice(answer.result())
                sent.result()
            except PPWorkError as error:
                self._prefer_notice(error, self._expect_result())
                raise
        self.session.sent(envelope, flush=flush)
        log.debug("envelope.sent %s %s", envelope.action.name, ids)

    def _expect_result(self) -> Future[Incoming]:
        if self._expected_result is None:
            move = receiver(self.groups, "up_pg")
            job = self._lanes["up_pg"].submit(lambda: receive(self._decoder, self.groups.device, move))
            self._expected_result = job
        return self._expected_result

    def _take_result(self) -> PPResult:
        answer = self._expect_result()
        with self.recorder.span("receive", lane="up_pg", ids=self.session.last_ids.where()):
            incoming = result_of(answer, self._patience, what="receive", group="up_pg", peer=1)
        self._expected_result = None
        self._refuse_notice(incoming)
        if not isinstance(incoming.message, PPResult):
            raise _wrong_kind(incoming)
        return incoming.message

    def _prefer_notice(self, error: PPWorkError, answer: Future[Incoming]) -> None:
        """A broken send is a symptom; if the leader managed to say why, that is the news."""
        try:
            incoming = result_of(answer, NOTICE_TIMEOUT_S, what="notice", group="up_pg", peer=1)
        except PPWorkError:
            return
        if incoming.message.reason is not None:
            raise notice_of(incoming.message.reason, self.groups.rank, self.groups.role) from error

    # Mesh

    def receive(self) -> PPEnvelope:
        """Return the next envelope, the same on every mesh rank; leader and followers only.

        The leader validates it whole before the mesh sees any of it (rule of the design's step 4).

        Raises:
            RemoteProtocolError: It is not a legal envelope here (leader before the broadcast).
            TerminalNotice: Stage 0 or the leader ended the session (whoever receives it).
            PeerLostError, PeerTimeoutError: The sender is gone or silent.

        Collective:
            ``mesh_pg``: one broadcast of the frame, one of each further part.

        Blocks:
            Until stage 0 sends; at most ``timeout_s``.
        """
        leads = self.groups.role is Role.LEADER
        name = "down_pg" if leads else "mesh_pg"
        start_ns = time.monotonic_ns()
        incoming = self._receive_from(name)
        envelope = incoming.message
        if not isinstance(envelope, PPEnvelope):
            raise _wrong_kind(incoming)
        self.session.received(envelope)
        self.recorder.add_span("receive", start_ns, lane=name, ids=envelope.ids.where())
        if leads:
            self._commit("mesh.broadcast", envelope.ids)
            with self.recorder.span("broadcast", lane="mesh_pg", ids=envelope.ids.where()):
                self._broadcast(incoming, self._patience)
        self._refuse_notice(incoming)
        return envelope

    def _receive_from(self, name: str) -> Incoming:
        move = receiver(self.groups, name) if name == "down_pg" else broadcaster(self.groups)
        job = self._lanes[name].submit(lambda: receive(self._decoder, self.groups.device, move))
        return result_of(job, self._patience, what="receive", group=name)

    def _broadcast(self, outgoing: Any, timeout_s: float) -> None:  # noqa: ANN401  Incoming or Outgoing
        move = broadcaster(self.groups)
        job = self._lanes["mesh_pg"].submit(lambda: move_all(outgoing.parts, move))
        result_of(job, timeout_s, what="broadcast", group="mesh_pg")

    def computed(self, observed_calls: int) -> Ids:
        """Check the call count of the oldest chunk on this mesh rank and return its ids (rule R4).

        Raises:
            LocalProtocolError: The count is not the plan's (this mesh rank).
        """
        return self.session.finished(observed_calls).ids

    def send_result(self, result: PPResult) -> None:
        """Send a result, or the acknowledgement of SHUTDOWN, to rank 0; leader only.

        Raises:
            LocalProtocolError: Preflight refused it; no byte has left (leader).
            PeerLostError, PeerTimeoutError: Rank 0 is gone or silent (leader).

        Blocks:
            Until rank 0 has taken all of it; at most ``timeout_s``.
        """
        outgoing = preflight(result, self._encoder, self.groups.device)
        self._commit("result.send", result.ids)
        with self.recorder.span("send_result", lane="up_pg", ids=result.ids.where()):
            move = sender(self.groups, "up_pg")
            job = self._lanes["up_pg"].submit(lambda: move_all(outgoing.parts, move))
            result_of(job, self._patience, what="send", group="up_pg", peer=0)

    def acknowledge(self) -> None:
        """Answer SHUTDOWN: the leader to rank 0, a follower by leaving; see ``send_result``."""
        if self.groups.role is Role.LEADER:
            self.send_result(PPResult(PPAction.SHUTDOWN, self.session.last_ids))
        self.session.acknowledged()

    # The end, on every rank

    def statistics(self) -> tuple[LaneStatistics, ...]:
        """Return how full each lane is."""
        return tuple(lane.statistics() for lane in self._lanes.values())

    def fail(self, error: BaseException) -> None:
        """Go to ERROR and tell the peers why, once and within about 2 s; then leave.

        Never raises: whoever calls it is on the way out, and what it could not say, the closed connection
        will. A ``TerminalNotice`` is passed on to the mesh but not sent back to where it came from.
        """
        self.session.failed(error)
        if self._told:
            return
        self._told = True
        for name, message in notices(self.groups.role, self.session.last_ids, error):
            try:
                outgoing = preflight(message, Encoder(limits_of(self.plan)), self.groups.device)
                if name == "mesh_pg":
                    self._broadcast(outgoing, NOTICE_TIMEOUT_S)
                else:
                    move = sender(self.groups, name)
                    job = self._lanes[name].submit(partial(move_all, outgoing.parts, move))
                    result_of(job, NOTICE_TIMEOUT_S, what="notice", group=name)
            except Exception as unsent:  # noqa: BLE001  the first error is the one to report
                log.warning("notice.unsent group=%s %s", name, unsent)

    @property
    def _patience(self) -> float:
        """The lane's own bound comes first, because it knows the cause; this one is for a stuck lane."""
        return self.groups.timeout_s + 2.0

    def _commit(self, point: str, ids: Ids) -> None:
        if point not in COMMITMENT_POINTS:
            raise ValueError(f"{point!r} is not a commitment point")
        self.recorder.instant(point, ids=ids.where())
        log.debug("%s.started %s", point, ids)
        if self._hook is not None:
            self._hook(point, ids)

    def _refuse_notice(self, incoming: Incoming) -> None:
        if incoming.message.action is PPAction.ERROR and incoming.message.reason is not None:
            raise notice_of(incoming.message.reason, self.groups.rank, self.groups.role)


def _wrong_kind(incoming: Incoming) -> RemoteProtocolError:
    return RemoteProtocolError(
        f"A {type(incoming.message).__name__} came where the other kind of message belongs.",
        where=incoming.message.ids.where(),
        check_first="does anybody else use this group?",
    )
