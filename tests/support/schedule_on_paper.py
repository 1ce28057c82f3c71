"""Blocking schedules on paper: one list of blocking operations per rank, played, and their deadlocks found.

``ppwork.timeline.simulate`` plays the pipeline of this package, which has none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppwork.protocol.topology import Topology
from ppwork.records.spans import Span

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

from ppwork.timeline.costs import refuse


@dataclass(frozen=True)
class Send:
    """Block until ``peer`` (a global rank) receives on this group."""

    peer: int
    group: str = "world_pg"
    ms: float = 0.0


@dataclass(frozen=True)
class Recv:
    """Block until ``peer`` (a global rank) sends on this group."""

    peer: int
    group: str = "world_pg"
    ms: float = 0.0


@dataclass(frozen=True)
class Collective:
    """Block until every rank of the group calls the same collective; the slowest ``ms`` counts."""

    group: str
    name: str = "collective"
    ms: float = 0.0


@dataclass(frozen=True)
class Compute:
    """Work alone."""

    ms: float
    name: str = "compute"


@dataclass(frozen=True)
class Throw:
    """Raise: the rank leaves here and does nothing more of its list."""

    what: str = "an error"


Op = Send | Recv | Collective | Compute | Throw


@dataclass(frozen=True)
class Stuck:
    """One rank that waits for ever."""

    rank: int
    index: int
    """Which operation of its list, from 0."""
    op: Op
    waits_for: tuple[int, ...]
    """The ranks that do not come."""

    def __str__(self) -> str:
        match self.op:
            case Send(peer, group):
                what = f"in send to rank {peer} on {group}"
            case Recv(peer, group):
                what = f"in recv from rank {peer} on {group}"
            case Collective(group, name):
                missing = ", ".join(f"rank {rank}" for rank in self.waits_for)
                what = f"in {name} on {group} for {missing}"
            case other:
                what = str(other)
        return f"rank {self.rank} waits {what} (operation {self.index})"


@dataclass(frozen=True)
class Deadlock:
    """Why a schedule never ends.

    ``print`` it: one line per stuck rank, one per rank that left early, and the cycle.
    """

    stuck: tuple[Stuck, ...]
    cycle: tuple[int, ...]
    """Ranks that wait each for the next and the last for the first; empty if somebody just never comes."""
    ended: dict[int, str]
    """Ranks that will not come any more, and how they left."""
    spans: dict[int, list[Span]]
    """What each rank had done until then."""

    def __str__(self) -> str:
        lines = [str(stuck) for stuck in self.stuck]
        awaited = {rank for stuck in self.stuck for rank in stuck.waits_for}
        lines += [f"rank {rank} {how}" for rank, how in self.ended.items() if rank in awaited]
        if self.cycle:
            lines.append("cycle: " + " -> ".join(f"rank {rank}" for rank in (*self.cycle, self.cycle[0])))
        return "\n".join(lines)


def run_blocking(
    programs: Mapping[int, Sequence[Op]], groups: Mapping[str, Sequence[int]] | None = None
) -> dict[int, list[Span]] | Deadlock:
    """Play one list of blocking operations per rank, with the rendezvous semantics of gloo.

    Nothing is buffered: a send ends when its receive does. One thread per rank, so no rank is ever in two
    operations. A collective matches only if all ranks of the group are in one of the same name.

    >>> print(run_blocking({0: [Send(1), Recv(1)], 1: [Send(0), Recv(0)]}))
    rank 0 waits in send to rank 1 on world_pg (operation 0)
    rank 1 waits in send to rank 0 on world_pg (operation 0)
    cycle: rank 0 -> rank 1 -> rank 0

    Args:
        programs: Per global rank, what it does in order.
        groups: Global ranks of each group; by default those of a ``Topology`` of as many ranks.

    Returns:
        The spans per rank if all lists come to their end, else the ``Deadlock``.

    Raises:
        PlanError: An operation names an unknown group, or a rank that is not in it.
    """
    members = _members_of(programs, groups)
    at = dict.fromkeys(programs, 0)
    clock = dict.fromkeys(programs, 0.0)
    spans: dict[int, list[Span]] = {rank: [] for rank in programs}
    thrown: dict[int, str] = {}
    moved = True
    while moved:
        moved = False
        for rank in programs:
            heads = {r: ops[at[r]] for r, ops in programs.items() if r not in thrown and at[r] < len(ops)}
            op = heads.get(rank)
            if op is None or _absent(rank, op, heads, members):
                continue
            moved = True
            if isinstance(op, Throw):
                thrown[rank] = f"raised {op.what} (operation {at[rank]})"
                continue
            together = (rank, *_needed(rank, op, members))
            end = max(clock[r] for r in together) + max(getattr(heads[r], "ms", 0.0) for r in together)
            for r in together:
                spans[r].append(_span_of(heads[r], clock[r], end))
                clock[r], at[r] = end, at[r] + 1
    heads = {r: ops[at[r]] for r, ops in programs.items() if r not in thrown and at[r] < len(ops)}
    if not heads:
        return spans
    stuck = tuple(Stuck(r, at[r], op, _absent(r, op, heads, members)) for r, op in heads.items())
    ended = {r: thrown.get(r, "has come to the end of its list") for r in programs if r not in heads}
    return Deadlock(stuck, _cycle({s.rank: s.waits_for for s in stuck}), ended, spans)


def _members_of(
    programs: Mapping[int, Sequence[Op]], groups: Mapping[str, Sequence[int]] | None
) -> dict[str, Sequence[int]]:
    """Return the ranks of each group in use, all operations checked against them."""
    topology = Topology(max(len(programs) - 1, 0))
    members: dict[str, Sequence[int]] = {}
    for rank, ops in programs.items():
        for op in ops:
            if isinstance(op, Compute | Throw):
                continue
            try:
                members[op.group] = topology.ranks(op.group) if groups is None else groups[op.group]
            except KeyError:
                refuse(f"group in rank {rank}'s {op}", op.group, "one of the groups")
            partners = members[op.group] if isinstance(op, Collective) else (op.peer,)
            for member in (rank, *partners):
                if member not in members[op.group] or member not in programs:
                    refuse(f"rank in rank {rank}'s {op}", member, f"a rank of {op.group}, with a list")
    return members


def _needed(rank: int, op: Op, members: Mapping[str, Sequence[int]]) -> tuple[int, ...]:
    """Return who else must come for this operation to end."""
    match op:
        case Send(peer, _) | Recv(peer, _):
            return (peer,)
        case Collective(group, _):
            return tuple(r for r in members[group] if r != rank)
        case _:
            return ()


def _absent(
    rank: int, op: Op, heads: Mapping[int, Op], members: Mapping[str, Sequence[int]]
) -> tuple[int, ...]:
    """Return who of those is not there now."""

    def fits(other: Op | None) -> bool:
        match op, other:
            case (Send(_, mine), Recv(peer, group)) | (Recv(_, mine), Send(peer, group)):
                return (peer, group) == (rank, mine)
            case Collective(mine, name), Collective(group, theirs):
                return (group, theirs) == (mine, name)
            case _:
                return False

    return tuple(r for r in _needed(rank, op, members) if not fits(heads.get(r)))


def _span_of(op: Op, start_ms: float, end_ms: float) -> Span:
    match op:
        case Send(_, lane) | Recv(_, lane):
            name = "send" if isinstance(op, Send) else "receive"
        case Collective(lane, name):
            pass
        case _:
            name, lane = getattr(op, "name", "compute"), "main"
    return Span(name, lane, round(start_ms * 1e6), round(end_ms * 1e6))


def _cycle(waits_for: Mapping[int, Sequence[int]]) -> tuple[int, ...]:
    """Return the first cycle found, starting at its smallest rank; empty if there is none."""

    def search(path: tuple[int, ...], seen: set[int]) -> tuple[int, ...]:
        for rank in waits_for.get(path[-1], ()):
            if rank in path:
                cycle = path[path.index(rank) :]
                first = cycle.index(min(cycle))
                return cycle[first:] + cycle[:first]
            if rank not in seen:
                seen.add(rank)
                if found := search((*path, rank), seen):
                    return found
        return ()

    seen: set[int] = set()
    return next((found for rank in waits_for if (found := search((rank,), seen))), ())
