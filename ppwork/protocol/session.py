"""The session: decides what may happen next, by a table, and checks ids, epochs and call counts (R2 to R4).

All decisions on what is legal are in this file. It does no I/O and reads no clock: the transport reports what
left and what arrived, and the session answers with the ids to use or an error. Each rank has one ``Session``
object, of the same class on all ranks; its table is in ``states``.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

from ppwork.errors import LocalProtocolError, PPWorkError, RemoteProtocolError, named_chunks
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.states import TRANSITIONS, Event, State
from ppwork.protocol.topology import LEADER_RANK, Role

COMMITMENT_POINTS = ("envelope.send", "mesh.broadcast", "result.send")
"""After each of these a peer blocks until the rest has come. The runtime calls its hook just before each."""


@dataclass(frozen=True)
class InFlight:
    """A chunk that has left (or arrived) and is not finished."""

    ids: Ids
    plan: ChunkPlan


class Session:
    """One rank's view of the protocol.

    Args:
        rank: This rank, for errors.
        role: Its role.
        depth: ``in_flight_depth``; an INFER beyond it is refused before it is sent.
    """

    def __init__(self, rank: int, role: Role, depth: int) -> None:
        self.rank = rank
        self.role = role
        self.depth = depth
        self.state = State.STARTING
        self.in_flight: deque[InFlight] = deque()
        self.flushed_before = 0
        """Results of an older epoch than this are stale (rule R3)."""
        self.last_ids = Ids(-1, -1, 0)
        """Ids of the newest action that was sent or received, notices apart."""

    def _where(self, **facts: Any) -> dict[str, Any]:  # noqa: ANN401  ids and names
        return {"rank": self.rank, "role": str(self.role), **facts}

    def move(self, event: Event, *, remote: bool = False) -> None:
        """Take one transition of the table.

        Raises:
            LocalProtocolError: The event is illegal in this state, and this rank caused it.
            RemoteProtocolError: The event is illegal in this state, and the peer caused it (``remote``).
        """
        after = TRANSITIONS[self.state].get(event)
        if after is None:
            before, self.state = self.state, self._after_illegal()
            kind = RemoteProtocolError if remote else LocalProtocolError
            legal = ", ".join(TRANSITIONS[before]) or "nothing"
            raise kind(
                f"The event {event} came in state {before}, where only {legal} may come.",
                where=self._where(**self.last_ids.where()),
                check_first="the order of calls on this rank" if not remote else "the peer's log",
            )
        self.state = after

    def _after_illegal(self) -> State:
        return State.CLOSED if self.state is State.CLOSED else State.ERROR

    def joined(self) -> None:
        """Record that groups, parity and warm-up are done."""
        self.move(Event.JOINED)

    # Stage 0: sending

    def next_ids(self, action: PPAction, *, hard_cut: bool = False) -> Ids:
        """Return the ids that the next envelope must carry; nothing changes before ``sent``."""
        infer = action is PPAction.INFER
        return Ids(
            self.last_ids.call_id + 1,
            self.last_ids.chunk_index + int(infer),
            self.last_ids.cache_epoch + int(infer and hard_cut),
        )

    def may_send(self, envelope: PPEnvelope) -> None:
        """Check, as part of preflight, that this envelope may leave now; changes nothing.

        Raises:
            LocalProtocolError: The envelope is illegal in this state, exceeds the depth, or has ids that do
                not follow the last ids (stage 0 only; nothing was sent).
        """
        event = _EVENTS[envelope.action]
        problem, check_first = self._sequence_problem(envelope), "does anything but the plane make envelopes?"
        if event not in TRANSITIONS[self.state]:
            problem = f"`{_CALLS[envelope.action]}` was called {_SINCE.get(self.state, 'too early')}."
            check_first = _WHY_NOT.get(self.state, "the order of calls on this rank")
            if self.state is State.BUSY:  # only SHUTDOWN is illegal there
                problem = f"The stream cannot end: {self._on_their_way()}."
        elif envelope.action is PPAction.INFER and len(self.in_flight) >= self.depth:
            at = f"{self._on_their_way()}, and the plan's depth is {self.depth}"
            problem = f"Chunk {envelope.ids.chunk_index} was not sent: {at}."
            check_first = "a `receive_result` before this `send`, or a larger in_flight_depth"
        if problem is not None:
            where = self._where(**envelope.ids.where())
            raise LocalProtocolError(problem, where=where, check_first=check_first)

    def _on_their_way(self) -> str:
        chunks = [each.ids.chunk_index for each in self.in_flight]
        return f"{named_chunks(chunks)} {'is' if len(chunks) == 1 else 'are'} in flight"

    def sent(self, envelope: PPEnvelope, *, flush: bool = False) -> None:
        """Record that an envelope passed commitment point 1.

        Args:
            envelope: The envelope that left.
            flush: Everything in flight before this envelope has become stale (rule R3).
        """
        self._pass(envelope, remote=False)
        if flush:
            self.flushed_before = envelope.ids.cache_epoch

    # Mesh: receiving

    def received(self, envelope: PPEnvelope) -> None:
        """Check and record an envelope at its receiver, before any collective.

        Raises:
            RemoteProtocolError: Ids are out of order, repeated or skipped, the epoch fell or rose without a
                cache reset, more chunks are in flight than the plan allows, or the envelope is illegal in
                this state (the leader, before the mesh broadcast; a follower only if the leader missed it).
        """
        problem = self._sequence_problem(envelope)
        if envelope.action is PPAction.INFER and len(self.in_flight) >= self.depth:
            problem = problem or f"More than the plan's {self.depth} chunks came in flight."
        if problem is not None:
            self.state = self._after_illegal()
            raise RemoteProtocolError(
                problem,
                where=self._where(**envelope.ids.where()),
                check_first=f"the last call seen here was {self.last_ids.call_id}; the sender's log",
            )
        self._pass(envelope, remote=True)

    def _sequence_problem(self, envelope: PPEnvelope) -> str | None:
        ids, last = envelope.ids, self.last_ids
        if envelope.action is PPAction.ERROR:
            return None  # terminal: it must get through whatever the counters say
        infer = envelope.action is PPAction.INFER
        if ids.call_id != last.call_id + 1:
            return f"call_id {ids.call_id} followed {last.call_id}; it must grow by exactly 1."
        if ids.chunk_index != last.chunk_index + int(infer):
            return (
                f"chunk_index {ids.chunk_index} of a {envelope.action.name} followed "
                f"{last.chunk_index}; it must grow by exactly 1 over INFER and never else."
            )
        if ids.cache_epoch < last.cache_epoch:
            return f"cache_epoch fell from {last.cache_epoch} to {ids.cache_epoch}."
        cut = ids.cache_epoch > last.cache_epoch
        if infer and (envelope.plan is None or envelope.plan.reset_cache != cut):
            return (
                f"cache_epoch went from {last.cache_epoch} to {ids.cache_epoch}, but the plan of the "
                f"chunk was {envelope.plan}; a hard cut raises the epoch and resets the cache."
            )
        if cut and not infer:
            return f"A {envelope.action.name} raised cache_epoch; only an INFER may."
        return None

    def _pass(self, envelope: PPEnvelope, *, remote: bool) -> None:
        self.move(_EVENTS[envelope.action], remote=remote)
        if envelope.action is PPAction.ERROR:
            return
        self.last_ids = envelope.ids
        if envelope.action is PPAction.INFER and envelope.plan is not None:
            self.in_flight.append(InFlight(envelope.ids, envelope.plan))

    # Results, both ends

    def finished(self, observed_calls: int) -> InFlight:
        """Mesh: record that the oldest chunk in flight is computed.

        Raises:
            LocalProtocolError: ``observed_calls`` is not the number that the chunk's plan expected
                (each mesh rank for itself), or nothing was in flight.
        """
        oldest = self._oldest(remote=False)
        if observed_calls != oldest.plan.expected_calls:
            self.state = State.ERROR
            raise LocalProtocolError(
                f"{observed_calls} generator calls were made; the chunk's plan expected "
                f"{oldest.plan.expected_calls}.",
                where=self._where(**oldest.ids.where()),
                check_first="does the generator skip or repeat steps on this rank? `reply` takes `calls`",
            )
        self._pop(remote=False)
        return oldest

    def result(self, result: PPResult) -> bool:
        """Stage 0: check the result of the oldest chunk in flight; say whether it is still good.

        Returns:
            ``False`` for a stale result, which the caller has to drop (rule R3).

        Raises:
            RemoteProtocolError: The message is not the result of a chunk, its ids are not the oldest chunk's,
                its call count is not the plan's, or nothing was in flight (rank 0 only).
        """
        oldest = self._oldest(remote=True)
        problem = None
        if result.action is not PPAction.INFER:
            problem = f"{result.action.name} {result.ids} came in place of the result of {oldest.ids}."
        elif result.ids != oldest.ids:
            problem = f"The result of {result.ids} came; the oldest in flight was {oldest.ids}."
        elif result.observed_calls != oldest.plan.expected_calls:
            problem = (
                f"The mesh made {result.observed_calls} generator calls; the chunk's plan expected "
                f"{oldest.plan.expected_calls}."
            )
        if problem is not None:
            self.state = State.ERROR
            raise RemoteProtocolError(
                problem,
                where=self._where(peer=LEADER_RANK, **result.ids.where()),
                check_first="the leader's log around this call_id",
            )
        self._pop(remote=True)
        return oldest.ids.cache_epoch >= self.flushed_before

    def _oldest(self, *, remote: bool) -> InFlight:
        if not self.in_flight:
            self.move(Event.RESULT, remote=remote)
        return self.in_flight[0]

    def _pop(self, *, remote: bool) -> None:
        is_last = len(self.in_flight) <= 1
        self.move(Event.LAST_RESULT if is_last else Event.RESULT, remote=remote)
        self.in_flight.popleft()

    # The end

    def may_acknowledge(self) -> None:
        """Mesh: check that SHUTDOWN has come; changes nothing.

        Raises:
            LocalProtocolError: SHUTDOWN has not come, or was acknowledged already (this rank; nothing sent).
        """
        if Event.ACKNOWLEDGED not in TRANSITIONS[self.state]:
            why = "it had been acknowledged" if self.state is State.CLOSED else "SHUTDOWN had not come"
            raise LocalProtocolError(
                f"`acknowledge` was called in state {self.state}; {why}.",
                where=self._where(**self.last_ids.where()),
                check_first="a loop over `receive` calls it once SHUTDOWN has come; `chunks` calls it itself",
            )

    def acknowledged(self, answer: PPResult | None = None) -> None:
        """Record that the acknowledgement of SHUTDOWN was sent or received.

        Args:
            answer: What rank 0 received; ``None`` on the mesh, which sends the acknowledgement.

        Raises:
            RemoteProtocolError: Rank 0 received something else (rank 0 only).
            LocalProtocolError: SHUTDOWN has not come (mesh ranks).
        """
        if answer is not None and (answer.action is not PPAction.SHUTDOWN or answer.ids != self.last_ids):
            self.state = self._after_illegal()
            raise RemoteProtocolError(
                f"{answer.action.name} {answer.ids} came in place of the acknowledgement of SHUTDOWN.",
                where=self._where(peer=LEADER_RANK, **answer.ids.where()),
                check_first="the leader's log around this call_id",
            )
        self.move(Event.ACKNOWLEDGED, remote=answer is not None)

    def failed(self, error: BaseException, at: Ids) -> None:
        """Go to ERROR and stay there (rule R9); add rank, role and ids to an error of ours.

        Args:
            error: The error; if it names a chunk, it keeps that chunk's ids.
            at: Ids of the chunk that the rank was at: the oldest in flight, not the last that arrived.
        """
        if self.state is not State.CLOSED:
            self.state = State.ERROR
        if isinstance(error, PPWorkError):
            knows_chunk = "chunk_index" in error.where or at.call_id < 0
            error.at(**self._where(**{} if knows_chunk else at.where()))


OVER = State.DRAINING, State.CLOSED
_WHY_NOT = {
    State.BUSY: "a `receive_result` for each of them before `shutdown()`",
    **dict.fromkeys(OVER, "`shutdown` is the last call, and made once: after the last `receive_result`"),
    State.ERROR: "an earlier error of this rank, which ended the session",
}
"""What to check first if an envelope may not leave in this state."""
_SINCE = {
    **dict.fromkeys(OVER, "after `shutdown()`"),
    State.ERROR: "after an error that had ended the session",
}
_CALLS = {
    PPAction.NOOP: "heartbeat",
    PPAction.INFER: "send",
    PPAction.SHUTDOWN: "shutdown",
    PPAction.ERROR: "fail",
}
"""The call of rank 0 that sends an envelope of this action."""
_EVENTS = {
    PPAction.NOOP: Event.NOOP,
    PPAction.INFER: Event.INFER,
    PPAction.SHUTDOWN: Event.SHUTDOWN,
    PPAction.ERROR: Event.NOTICE,
}
