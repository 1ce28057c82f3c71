"""NCCL's watchdog, read back from the logs of ranks: what did not end, who was behind, what ended a process.

It is a thread of C++ in torch. When a collective does not end, it writes the number and kind, and how far
its rank was; then, as after any other error, it says why and aborts the process, so that no rank of ours can
write a record. The numbers count the works of one group on one rank, so the same number is the same place in
the program: a rank that issued fewer is behind, and two kinds or sizes under one number are two calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from ppwork.diagnosis.findings import Finding
from ppwork.errors import PeerTimeoutError, named_ranks
from ppwork.protocol.backend_errors import as_peer_error
from ppwork.protocol.topology import GROUP_ORDER, Topology
from ppwork.records.flight import group_name

_TIMED_OUT = re.compile(
    r"\[Rank (?P<rank>\d+)\] Watchdog caught collective operation timeout: "
    r"WorkNCCL\((?:SeqNum=(?P<number>\d+), )?OpType=(?P<kind>\w+)(?:, NumelIn=(?P<numel>\d+))?"
)
"""torch before 1.13 writes no number."""
_REACHED = re.compile(
    r"\[PG (?:[^\[\]]{0,120}?GUID (?P<group>\w+))?[^\[\]]{0,120}? Rank (?P<rank>\d+)\]\s{1,9}"
    r"(?:(?:Exception .{0,120}?|failure) detected by watchdog at|Timeout at NCCL) work(?: sequence id)?: "
    r"(?P<number>\d+).{0,200}?last enqueued (?:NCCL )?work: (?P<issued>-?\d+)"
)
"""In the words of torch 2.8 and up, and of those before. All is bounded: a line may be very long."""
_ENDED = re.compile(
    r"\[PG [^\[\]]{0,120}?GUID (?P<group>\w+)[^\[\]]{0,120}? Rank \d+\] .{0,120}?"
    r"watchdog thread terminated with exception: (?P<why>.+)"
)
_LAST_WORDS = re.compile(
    r"Rank (?P<rank>\d+)\] .{0,120}?watchdog thread terminated with exception: "
    r"(?P<why>(?!\[Rank).+(?:\nnccl\w+: .+)?)"
)
_SAME_SIZE = ("ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
_TIMEOUT = "CollectiveTimeout"


@dataclass(frozen=True)
class WatchdogReport:
    """Last words of NCCL's watchdog in one rank.

    Attributes:
        what: They, in short.
        error_type: Type of the error about a peer that they amount to; empty: this rank is the cause.
        group: Group of the work.
        behind: Ranks of the group that are not known to have issued that work.
    """

    what: str
    error_type: str
    group: str
    behind: tuple[int, ...] = ()


def ends_of(texts: Mapping[int, str], topology: Topology) -> dict[int, WatchdogReport]:
    """Return what NCCL said of the end of a run's ranks; one of which it said nothing is left out.

    Args:
        texts: Output of each rank.
        topology: Of the run: who is in which group.
    """
    issued: dict[tuple[int, str], int] = {}
    for rank, text in texts.items():
        for line in _REACHED.finditer(text):
            issued[rank, group_name(line["group"] or "")] = int(line["issued"])
    ends: dict[int, WatchdogReport] = {}
    for rank, text in texts.items():
        late, reached, ended = _TIMED_OUT.search(text), _REACHED.search(text), _ENDED.search(text)
        about = as_peer_error(RuntimeError(ended["why"]), "its work") if ended is not None else None
        if ended is not None and about is None:
            ends[rank] = WatchdogReport(ended["why"], "", group_name(ended["group"]))
        elif late is not None and reached is not None:
            group, number = group_name(reached["group"] or ""), int(reached["number"])
            members = topology.ranks(group) if group in ("world_pg", *GROUP_ORDER) else ()
            behind = tuple(m for m in members if m != rank and issued.get((m, group), -1) < number)
            what = f"{late['kind']} number {number} on {group} did not end within its bound"
            ends[rank] = WatchdogReport(what, PeerTimeoutError.__name__, group, behind)
        elif ended is not None:
            ends[rank] = WatchdogReport(ended["why"], type(about).__name__, group_name(ended["group"]))
    return ends


def lagging(texts: Mapping[int, str], console: str = "") -> Finding | None:
    """Say which ranks the others waited for, by the watchdog; ``None`` if none spoke.

    Args:
        texts: Output of each rank; the first timeout of a rank counts.
        console: Lines of no known rank: the watchdog's own words name it.
    """
    works = _works_of(texts, console)
    if not works:
        return None
    late = _Late(works, (*texts, *works))
    for rule in (_called_others, _further_on, _did_not, _behind):
        if (finding := rule(late)) is not None:
            return finding
    return _nobody(late)


def terminated(texts: Mapping[int, str], console: str = "") -> dict[int, tuple[str, bool]]:
    """Return why the watchdog ended each rank, if not for a timeout, and whether that is about a peer."""
    ends: dict[int, tuple[str, bool]] = {}
    for rank, line in _watchdog_lines(_LAST_WORDS, texts, console):
        is_about_peer = as_peer_error(RuntimeError(line["why"]), "its work") is not None
        ends.setdefault(rank, (line["why"].splitlines()[0], is_about_peer))
    return ends


@dataclass
class _Work:
    """The work that a rank was in when the watchdog spoke, and the last one it issued; -1 is unknown."""

    number: int
    kind: str
    numel: str
    enqueued: int = -1

    @property
    def call(self) -> str:
        """Its kind, with the number of elements where all ranks must have the same."""
        return f"{self.kind} of {self.numel}" if self.kind in _SAME_SIZE and self.numel else self.kind


class _Late:
    """The earliest work that did not end in its bound, and who stood where.

    Args:
        works: Of the ranks whose watchdog spoke.
        ranks: All that are known.

    Attributes:
        works: The same.
        number: Of the earliest work; -1: torch wrote none.
        waiting: The works of the ranks that stood in it, in their order.
        absent: The other ranks.
        issued: The last work that each waiting rank had issued, where it is known.
    """

    def __init__(self, works: Mapping[int, _Work], ranks: Iterable[int]) -> None:
        self.works = works
        self.number = min(work.number for work in works.values())
        self.waiting = {rank: work for rank, work in sorted(works.items()) if work.number == self.number}
        self.absent = tuple(sorted({*ranks} - set(self.waiting)))
        self.issued = {rank: work.enqueued for rank, work in self.waiting.items() if work.enqueued >= 0}

    @property
    def sentence(self) -> str:
        """Who timed out in what, without the full stop."""
        kinds = dict.fromkeys(work.kind for work in self.waiting.values())
        collective = "/".join(kinds) + (f" number {self.number}" if self.number >= 0 else "")
        return f"{named_ranks(tuple(self.waiting)).capitalize()} timed out in {collective}"

    def elsewhere(self) -> list[str]:
        """Return what the absent ranks stood in whose watchdog spoke, too."""
        known = [(rank, self.works[rank]) for rank in self.absent if rank in self.works]
        return [f"rank {rank} in {work.kind} number {work.number}" for rank, work in known]


def _works_of(texts: Mapping[int, str], console: str) -> dict[int, _Work]:
    works: dict[int, _Work] = {}
    for rank, line in _watchdog_lines(_TIMED_OUT, texts, console):
        works.setdefault(rank, _Work(int(line["number"] or -1), line["kind"], line["numel"] or ""))
    for rank, line in _watchdog_lines(_REACHED, texts, console):
        if rank in works and works[rank].number == int(line["number"]):
            works[rank].enqueued = int(line["issued"])
    return works


def _called_others(late: _Late) -> Finding | None:
    if late.number < 0 or len({work.call for work in late.waiting.values()}) == 1:
        return None
    each = "; ".join(f"rank {rank} in {work.call}" for rank, work in late.waiting.items())
    return Finding(
        tuple(late.waiting),
        _TIMEOUT,
        f"The ranks called different collectives as number {late.number}: {each}.",
        "what makes the order of calls differ between these ranks",
    )


def _further_on(late: _Late) -> Finding | None:
    # Whoever is further on has made this call: the numbers are of other groups, or the order differs.
    if not late.absent or not all(rank in late.works for rank in late.absent):
        return None
    return Finding(
        (),
        _TIMEOUT,
        f"{late.sentence}, {', '.join(late.elsewhere())}.",
        "are these one group? then what makes the order of calls differ between these ranks",
        unknown=("which of them is at fault: the numbers count the calls of one group on one rank",),
    )


def _did_not(late: _Late) -> Finding | None:
    if not late.absent:
        return None
    whom, others = named_ranks(late.absent), late.elsewhere()
    later = f", but {', '.join(others)}" if others else ""
    return Finding(
        late.absent,
        _TIMEOUT,
        f"{late.sentence}; {whom} did not{later}.",
        f"where {whom} was at that time",
        unknown=(f"whether {whom} never called it: no timeout is no proof",),
    )


def _behind(late: _Late) -> Finding | None:
    behind = tuple(rank for rank, last in late.issued.items() if last < max(late.issued.values()))
    if not behind:
        return None
    each = "; ".join(f"rank {rank} had issued {last}" for rank, last in late.issued.items())
    return Finding(
        behind,
        _TIMEOUT,
        f"{late.sentence}, and {named_ranks(behind)} was behind: {each}.",
        f"what {named_ranks(behind)} does between calls",
    )


def _nobody(late: _Late) -> Finding:
    none = "none of them" if len(late.waiting) > 1 else "nobody"
    return Finding(
        tuple(late.waiting),
        _TIMEOUT,
        f"{late.sentence}, and {none} is known to be behind.",
        "the network and the GPUs, if these are all the ranks; else where the others were",
        unknown=("which rank failed to take part",),
    )


def _watchdog_lines(
    pattern: re.Pattern[str], texts: Mapping[int, str], console: str
) -> Iterator[tuple[int, re.Match[str]]]:
    for rank, text in texts.items():
        # In a group of its own a rank has another number in the brackets; its log knows better.
        yield from ((rank, line) for line in pattern.finditer(text))
    yield from ((int(line["rank"]), line) for line in pattern.finditer(console))
