"""NCCL's watchdog, read back: which collective did not end, and how far each rank was.

Its numbers count the works of one group on one rank, so the same number is the same place in the program: a
rank that issued fewer is behind, and two kinds or sizes under one number are two different calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ppwork.diagnosis.findings import Finding
from ppwork.errors import named_ranks

_TIMED_OUT = re.compile(r"\[Rank (\d+)\] Watchdog caught collective operation timeout: "
                        r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)(?:, NumelIn=(\d+))?")  # fmt: skip
_REACHED = re.compile(r"\[PG .*? Rank (\d+)\]\s+(?:Exception .* detected by watchdog at|Timeout at NCCL)"
                      r" work: (\d+), last enqueued NCCL work: (-?\d+)")  # fmt: skip
_SAME_SIZE = ("ALLREDUCE", "BROADCAST", "REDUCE", "_ALLGATHER_BASE", "_REDUCE_SCATTER_BASE")
_TIMEOUT = "CollectiveTimeout"


def lagging(texts: Mapping[int, str], console: str = "") -> Finding | None:
    """Say which ranks the others waited for, by the watchdog; ``None`` if none spoke.

    Args:
        texts: Output of each rank; the first timeout of a rank counts.
        console: Lines of no known rank: the watchdog's own words name it.
    """
    works: dict[int, _Work] = {}
    for rank, line in _watchdog_lines(_TIMED_OUT, texts, console):
        works.setdefault(rank, _Work(int(line[2]), line[3], line[4] or ""))
    for rank, line in _watchdog_lines(_REACHED, texts, console):
        if rank in works and works[rank].number == int(line[2]):
            works[rank].enqueued = int(line[3])
    if not works:
        return None
    number = min(work.number for work in works.values())
    waiting = {rank: work for rank, work in sorted(works.items()) if work.number == number}
    kinds = dict.fromkeys(work.kind for work in waiting.values())
    ranks, collective = tuple(waiting), f"{'/'.join(kinds)} number {number}"
    absent = tuple(sorted({*texts, *works} - set(waiting)))
    issued = {rank: work.enqueued for rank, work in waiting.items() if work.enqueued >= 0}
    behind = tuple(rank for rank, last in issued.items() if last < max(issued.values()))
    if len(dict.fromkeys(work.call for work in waiting.values())) > 1:
        each = "; ".join(f"rank {rank} in {work.call}" for rank, work in waiting.items())
        return Finding(
            ranks,
            _TIMEOUT,
            f"The ranks called different collectives as number {number}: {each}.",
            "what makes the order of calls differ between these ranks",
        )
    said = f"{named_ranks(ranks).capitalize()} timed out in {collective}"
    if absent:
        whom = named_ranks(absent)
        others = [f"rank {r} in {works[r].kind} number {works[r].number}" for r in absent if r in works]
        later = f", but {', '.join(others)}" if others else ""
        return Finding(
            absent,
            _TIMEOUT,
            f"{said}; {whom} did not{later}.",
            f"where {whom} was at that time",
            unknown=(f"whether {whom} never called it: no timeout is no proof",),
        )
    if behind:
        each = "; ".join(f"rank {rank} had issued {last}" for rank, last in issued.items())
        return Finding(
            behind,
            _TIMEOUT,
            f"{said}, and {named_ranks(behind)} was behind: {each}.",
            f"what {named_ranks(behind)} does between calls",
        )
    return Finding(
        ranks,
        _TIMEOUT,
        f"{said}, and none of them is known to be behind.",
        "the network and the GPUs, if these are all the ranks; else where the others were",
        unknown=("which rank failed to take part",),
    )


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


def _watchdog_lines(
    pattern: re.Pattern[str], texts: Mapping[int, str], console: str
) -> Iterator[tuple[int, re.Match[str]]]:
    for rank, text in texts.items():
        # In a group of its own a rank has another number in the brackets; its log knows better.
        yield from ((rank, line) for line in pattern.finditer(text))
    yield from ((int(line[1]), line) for line in pattern.finditer(console))
