"""One call between ranks: the work of each rank, the messages between them, and what never came.

It is put together from a run's entries and, if the run failed, the ranks' last words. Times are in
milliseconds from the start of the chunk's encode, with the clocks of several hosts aligned first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ppwork.errors import PlanError, RemoteProtocolError, TerminalNotice
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK, Role, Topology
from ppwork.records.clocks import clock_offsets
from ppwork.records.failure import FailureRecord, read_records
from ppwork.records.run import Run
from ppwork.records.spans import INJECTED, STREAM, Entry, Instant
from ppwork.timeline.chunks import TRANSFER_AT, WORK, aligned, entries_of_call, spans_of, steps_of

DUTIES = {
    Role.STAGE0: ("encode", "preflight", "envelope.send", "decode", "emit"),
    Role.LEADER: ("mesh.broadcast", "generate", "result.send"),
    Role.FOLLOWER: ("generate",),
}
"""Steps of a rank for a chunk, in order, except receiving."""
DROPPED = ("decode", "emit")
"""Steps that rank 0 skips for a chunk that a flush made stale."""


@dataclass(frozen=True)
class RankStep:
    """Work of one rank."""

    rank: int
    name: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class SentMessage:
    """A message that left one rank for another at a commitment point."""

    point: str
    group: str
    sender: int
    receiver: int
    left_ms: float
    arrived_ms: float | None
    """Time at which the receiver had the whole message and had accepted it; ``None``: never."""
    refused_ms: float | None = None
    """Time at which the receiver had read the message and refused it; ``None``: it did not say so."""


@dataclass(frozen=True)
class LastWord:
    """A rank's record about the end of the session."""

    rank: int
    error_type: str
    at_ms: float
    told_by: int | None
    """Sender of the terminal notice; ``None`` if the rank found out by itself."""
    told_ms: float | None
    """Time of the sender's own last word, at the latest the moment of the notice."""


@dataclass(frozen=True)
class CallStory:
    """The life of one chunk, as far as it got."""

    call_id: int
    chunk_index: int
    cache_epoch: int
    topology: Topology
    steps: tuple[RankStep, ...]
    points: Mapping[str, float]
    """Times of the commitment points that were reached."""
    messages: tuple[SentMessage, ...]
    end: tuple[str, float] | None
    """``emit`` or ``drop``, and its time; ``None`` if neither happened."""
    undone: Mapping[int, tuple[str, ...]]
    """Steps that each rank has not completed; ranks with no such step are left out."""
    injected: tuple[int, float] | None
    """Rank and time of an injected fault, if the call did not end."""
    last_words: tuple[LastWord, ...]
    """Records about a call that did not end, in order of time."""
    before: tuple[RankStep, ...] = ()
    """What mesh ranks still computed of the chunk before when this one's encode began, from there on."""

    @property
    def length_ms(self) -> float:
        """Milliseconds from the start of the call to the last known moment of it."""
        moments = [step.end_ms for step in self.steps] + [word.at_ms for word in self.last_words]
        moments += [*self.points.values(), *(m.arrived_ms for m in self.messages if m.arrived_ms is not None)]
        return max(moments + ([self.end[1]] if self.end is not None else []))


def call_story(run: Run, chunk_index: int) -> CallStory:
    """Put together the life of one chunk of a run.

    Raises:
        PlanError: The run has not begun that chunk; names the chunks that it has.
    """
    recorded = run.entries_by_rank
    ranks, topology = aligned(recorded), run.plan.topology
    begun = steps_of(ranks[STAGE0_RANK], "encode")
    encode = next((e for e in begun if e.chunk_index == chunk_index), None)
    if encode is None:
        sent = f"chunks {begun[0].chunk_index} to {begun[-1].chunk_index}" if begun else "no chunk"
        raise PlanError(f"The run has no chunk {chunk_index}.", check_first=f"it has sent {sent}")
    zero_ns = encode.start_ns

    def ms(at_ns: int) -> float:
        return (at_ns - zero_ns) / 1e6

    of_call = entries_of_call(ranks, encode.call_id)
    instants = [e for entries in of_call.values() for e in entries if isinstance(e, Instant)]
    points = {e.name: ms(e.at_ns) for e in instants if e.name in TRANSFER_AT}
    end = next(((e.name, ms(e.at_ns)) for e in instants if e.name in ("emit", "drop")), None)
    refused = {} if end is not None else _refused(run, encode.call_id, ms)
    injections = ((rank, e) for rank, entries in ranks.items() for e in entries if e.name == INJECTED)
    injected = next(((rank, ms(e.end_ns)) for rank, e in injections), None)
    return CallStory(
        encode.call_id,
        chunk_index,
        encode.cache_epoch,
        topology,
        steps=tuple(
            RankStep(rank, e.name, ms(e.start_ns), ms(e.end_ns))
            for rank, entries in of_call.items()
            for e in spans_of(entries, WORK)
        ),
        points=points,
        messages=tuple(_messages(of_call, points, topology, ms, refused)),
        end=end,
        undone=_undone(of_call, topology),
        injected=None if end is not None else injected,
        last_words=() if end is not None else _last_words(run, ms),
        before=tuple(
            RankStep(rank, e.name, max(0.0, ms(e.start_ns)), ms(e.end_ns))
            for rank in topology.mesh_ranks
            for e in spans_of(ranks.get(rank, ()), ("generate",))
            if e.chunk_index == chunk_index - 1 and e.end_ns > zero_ns
        ),
    )


def _messages(
    of_call: Mapping[int, Sequence[Entry]],
    points: Mapping[str, float],
    topology: Topology,
    ms: Callable[[int], float],
    refused: Mapping[int, float],
) -> Iterable[SentMessage]:
    for point, left_ms in points.items():
        sender, group, transfer = TRANSFER_AT[point]
        carried = any(e.name == transfer for e in of_call[sender])
        for receiver in topology.ranks(group):
            if receiver == sender:
                continue
            at_ns = _arrival(of_call[receiver], group)
            # A terminal notice carries the last ids, too. To not mistake it for the message, ask whether the
            # message was carried, or its receiver went on with it.
            if at_ns is not None and not carried:
                went_on = any(span.start_ns >= at_ns for span in spans_of(of_call[receiver], WORK))
                at_ns = at_ns if went_on else None
            arrived_ms = None if at_ns is None else ms(at_ns)
            refused_ms = refused.get(receiver) if arrived_ms is None else None
            yield SentMessage(point, group, sender, receiver, left_ms, arrived_ms, refused_ms)


def _arrival(entries: Sequence[Entry], group: str) -> int | None:
    """Return when a rank had the call's first message whole; rank 0 records it before it takes a result."""
    arrived = [e.at_ns for e in entries if isinstance(e, Instant) and e.name == "arrive" and e.lane == group]
    receives = spans_of(entries, ("receive",))
    received = [span.end_ns for span in receives if span.lane.removeprefix(STREAM) == group]
    return min(arrived or received, default=None)


def _undone(of_call: Mapping[int, Sequence[Entry]], topology: Topology) -> dict[int, tuple[str, ...]]:
    undone = {}
    for rank, entries in of_call.items():
        done = {e.name for e in entries}
        spared = (*done, *DROPPED) if "drop" in done else done
        if owed := tuple(name for name in DUTIES[topology.role(rank)] if name not in spared):
            undone[rank] = owed
    return undone


def _refused(run: Run, call_id: int, ms: Callable[[int], float]) -> dict[int, float]:
    """Return when each rank reported that a message of the call breaks the protocol."""
    return {
        record.rank: at_ms
        for at_ms, record in _records(run, ms)
        if record.error_type == RemoteProtocolError.__name__ and record.where.get("call_id") == call_id
    }


def _records(run: Run, ms: Callable[[int], float]) -> list[tuple[float, FailureRecord]]:
    """Return the last words of all ranks, each with its time, in order of time."""
    offsets = clock_offsets(run.entries_by_rank)
    records = read_records(run.run_dir, run.plan.world_size)
    timed = [
        (ms(record.at_ns - offsets[record.rank]), record) for record in records if record.rank in offsets
    ]
    return sorted(timed, key=lambda one: one[0])


def _last_words(run: Run, ms: Callable[[int], float]) -> tuple[LastWord, ...]:
    records = _records(run, ms)
    at_ms = {record.rank: said_ms for said_ms, record in records}
    words = []
    for _, record in records:
        by = None
        if record.error_type == TerminalNotice.__name__:
            by = STAGE0_RANK if record.rank == LEADER_RANK else LEADER_RANK
        told_ms = None if by is None else at_ms.get(by)
        words.append(LastWord(record.rank, record.error_type, at_ms[record.rank], by, told_ms))
    return tuple(words)
