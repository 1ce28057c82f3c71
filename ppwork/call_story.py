"""One call between ranks: what each did for it, what passed between them and when, and what never came.

Put together from the entries of a run, and of a failed one also from the ranks' last words. Times are in
milliseconds from the start of the chunk's encode; clocks of several hosts are brought together first.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppwork.clocks import clock_offsets
from ppwork.errors import PlanError, TerminalNotice
from ppwork.failure import read_records
from ppwork.fault import INJECTED
from ppwork.lives import WAYS, WORK, aligned
from ppwork.timeline import Entry, Instant, Span
from ppwork.topology import LEADER_RANK, STAGE0_RANK, Role, Topology

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from ppwork.run import Run

DUTIES = {
    Role.STAGE0: ("encode", "preflight", "envelope.send", "decode", "emit"),
    Role.LEADER: ("mesh.broadcast", "generate", "result.send"),
    Role.FOLLOWER: ("generate",),
}
"""What a rank does for a chunk, in order, besides receiving."""
DROPPED = ("decode", "emit")
"""What a flush spares a stale chunk."""


@dataclass(frozen=True)
class Step:
    """Work of one rank."""

    rank: int
    name: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Message:
    """What left one rank for another at a commitment point."""

    point: str
    group: str
    sender: int
    receiver: int
    left_ms: float
    arrived_ms: float | None
    """When the receiver had all of it and had accepted it; ``None``: never."""


@dataclass(frozen=True)
class LastWord:
    """What a rank wrote down when the session ended under it."""

    rank: int
    error_type: str
    at_ms: float
    told_by: int | None
    """Who sent the terminal notice; ``None`` when it found out by itself."""
    told_ms: float | None
    """When that rank wrote its own last word, at the latest the moment of the notice."""


@dataclass(frozen=True)
class CallStory:
    """The life of one chunk, as far as it got."""

    call_id: int
    chunk_index: int
    cache_epoch: int
    topology: Topology
    steps: tuple[Step, ...]
    points: Mapping[str, float]
    """Commitment points that were reached, and when."""
    messages: tuple[Message, ...]
    end: tuple[str, float] | None
    """``emit`` or ``drop``, and when; ``None``: neither."""
    undone: Mapping[int, tuple[str, ...]]
    """What each rank has not done, or not to its end; ranks that owe nothing are not in it."""
    injected: tuple[int, float] | None
    """Where and when a fault of the catalogue was put in, in a call that did not end."""
    last_words: tuple[LastWord, ...]
    """Of a call that did not end, in order of time."""

    @property
    def length_ms(self) -> float:
        """From the start to the last thing that is known of the call."""
        moments = [step.end_ms for step in self.steps] + [word.at_ms for word in self.last_words]
        moments += [*self.points.values(), *(m.arrived_ms for m in self.messages if m.arrived_ms is not None)]
        return max(moments + ([self.end[1]] if self.end is not None else []))


def call_story(run: Run, chunk_index: int) -> CallStory:
    """Put together the life of one chunk of a run.

    Raises:
        PlanError: The run has not begun that chunk; names those it has.
    """
    recorded = {rank: run.entries(rank) for rank in range(run.plan.world_size)}
    ranks, topology = aligned(recorded), run.plan.topology
    begun = [e for e in ranks[STAGE0_RANK] if isinstance(e, Span) and e.name == "encode"]
    encode = next((e for e in begun if e.chunk_index == chunk_index), None)
    if encode is None:
        known = f"chunks {begun[0].chunk_index} to {begun[-1].chunk_index}" if begun else "no chunk"
        raise PlanError(f"The run has no chunk {chunk_index}.", check_first=f"it has sent {known}")
    zero_ns = encode.start_ns

    def ms(at_ns: int) -> float:
        return (at_ns - zero_ns) / 1e6

    mine = {rank: [e for e in found if e.call_id == encode.call_id] for rank, found in ranks.items()}
    points = {e.name: ms(e.at_ns) for e in _instants(mine) if e.name in WAYS}
    end = next(((e.name, ms(e.at_ns)) for e in _instants(mine) if e.name in ("emit", "drop")), None)
    return CallStory(
        encode.call_id,
        chunk_index,
        encode.cache_epoch,
        topology,
        steps=tuple(
            Step(rank, e.name, ms(e.start_ns), ms(e.end_ns))
            for rank, found in mine.items()
            for e in found
            if isinstance(e, Span) and e.name in WORK
        ),
        points=points,
        messages=tuple(_messages(mine, points, topology, ms)),
        end=end,
        undone=_undone(mine, topology),
        injected=None if end is not None else _injected(ranks, ms),
        last_words=() if end is not None else _last_words(run, clock_offsets(recorded), ms),
    )


def _instants(ranks: Mapping[int, Iterable[Entry]]) -> list[Instant]:
    return [e for found in ranks.values() for e in found if isinstance(e, Instant)]


def _messages(
    mine: Mapping[int, Sequence[Entry]],
    points: Mapping[str, float],
    topology: Topology,
    ms: Callable[[int], float],
) -> Iterable[Message]:
    for point, left_ms in points.items():
        sender, group, transfer = WAYS[point]
        carried = any(e.name == transfer for e in mine[sender])
        for receiver in topology.ranks(group):
            if receiver == sender:
                continue
            at_ns = _arrival(mine[receiver], group)
            # A terminal notice bears the last ids, too. It is taken for the message only by a reader that
            # does not ask whether the message was carried, or its receiver went on with it.
            if at_ns is not None and not (carried or _went_on(mine[receiver], at_ns)):
                at_ns = None
            yield Message(point, group, sender, receiver, left_ms, None if at_ns is None else ms(at_ns))


def _arrival(entries: Sequence[Entry], group: str) -> int | None:
    """Return when the first message of the call was here whole; rank 0 says so before it takes a result."""
    here = [e.at_ns for e in entries if isinstance(e, Instant) and e.name == "arrive" and e.lane == group]
    taken = [e.end_ns for e in entries if isinstance(e, Span) and e.name == "receive" and e.lane == group]
    return min(here or taken, default=None)


def _went_on(entries: Sequence[Entry], at_ns: int) -> bool:
    return any(isinstance(e, Span) and e.name in WORK and e.start_ns >= at_ns for e in entries)


def _undone(mine: Mapping[int, Sequence[Entry]], topology: Topology) -> dict[int, tuple[str, ...]]:
    undone = {}
    for rank, entries in mine.items():
        done = {e.name for e in entries}
        owed = [name for name in DUTIES[topology.role(rank)] if name not in done]
        if "drop" in done:
            owed = [name for name in owed if name not in DROPPED]
        if owed:
            undone[rank] = tuple(owed)
    return undone


def _injected(ranks: Mapping[int, Iterable[Entry]], ms: Callable[[int], float]) -> tuple[int, float] | None:
    found = ((rank, e) for rank, entries in ranks.items() for e in entries if e.name == INJECTED)
    return next(((rank, ms(e.at_ns)) for rank, e in found if isinstance(e, Instant)), None)


def _last_words(run: Run, offsets: Mapping[int, int], ms: Callable[[int], float]) -> tuple[LastWord, ...]:
    at_ms, errors = {}, {}
    for record in read_records(run.run_dir, run.plan.world_size):
        at_ms[record.rank] = ms(record.at_ns - offsets.get(record.rank, 0))
        errors[record.rank] = record.error_type
    words = []
    for rank, at in sorted(at_ms.items(), key=lambda item: item[1]):
        told = errors[rank] == TerminalNotice.__name__
        by = None if not told else STAGE0_RANK if rank == LEADER_RANK else LEADER_RANK
        words.append(LastWord(rank, errors[rank], at, by, None if by is None else at_ms.get(by)))
    return tuple(words)
