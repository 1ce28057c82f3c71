"""What NCCL's watchdog writes when a collective does not end: its number, its kind, how far each rank was.

The numbers count the works of one group on one rank, so the same number is the same place in the program:
whoever issued fewer is behind, and two kinds under one number are two different calls.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppwork.errors import named_ranks

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_TIMED_OUT = re.compile(r"\[Rank (\d+)\] Watchdog caught collective operation timeout: "
                        r"WorkNCCL\(SeqNum=(\d+), OpType=(\w+)")  # fmt: skip
_REACHED = re.compile(r"\[PG .*? Rank (\d+)\]\s+Exception .* detected by watchdog at work: (\d+), "
                      r"last enqueued NCCL work: (-?\d+)")  # fmt: skip


@dataclass
class Reached:
    """How far a rank was when the watchdog spoke; -1 is unknown."""

    number: int
    kind: str
    enqueued: int = -1


@dataclass(frozen=True)
class Lag:
    """Who is behind, or called something else."""

    ranks: tuple[int, ...]
    what: str
    check_first: str
    unknown: tuple[str, ...] = ()


def reached(texts: Mapping[int, str], console: str = "") -> dict[int, Reached]:
    """Read how far each rank was; the first timeout of a rank counts.

    Args:
        texts: What each rank printed.
        console: Lines of no known rank: the watchdog's own words name it.
    """
    found: dict[int, Reached] = {}
    for rank, one in _lines(_TIMED_OUT, texts, console):
        found.setdefault(rank, Reached(int(one[2]), one[3]))
    for rank, one in _lines(_REACHED, texts, console):
        if rank in found and found[rank].number == int(one[2]):
            found[rank].enqueued = int(one[3])
    return found


def _lines(
    pattern: re.Pattern[str], texts: Mapping[int, str], console: str
) -> Iterator[tuple[int, re.Match[str]]]:
    for rank, text in texts.items():
        # In a group of its own a rank has another number in the brackets; its log knows better.
        yield from ((rank, one) for one in pattern.finditer(text))
    yield from ((int(one[1]), one) for one in pattern.finditer(console))


def lagging(texts: Mapping[int, str], console: str = "") -> Lag | None:
    """Say which ranks the others waited for; ``None`` if no watchdog spoke."""
    found = reached(texts, console)
    if not found:
        return None
    number = min(one.number for one in found.values())
    waiting = {rank: one for rank, one in sorted(found.items()) if one.number == number}
    kinds = dict.fromkeys(one.kind for one in waiting.values())
    ranks, work = tuple(waiting), f"{'/'.join(kinds)} number {number}"
    absent = tuple(sorted({*texts, *found} - set(waiting)))
    known = {rank: one.enqueued for rank, one in waiting.items() if one.enqueued >= 0}
    behind = tuple(rank for rank, last in known.items() if last < max(known.values()))
    if len(kinds) > 1:
        each = "; ".join(f"rank {rank} in {one.kind}" for rank, one in waiting.items())
        return Lag(
            ranks,
            f"The ranks called different collectives as number {number}: {each}.",
            "what makes the order of calls differ between these ranks",
        )
    if absent:
        whom = named_ranks(absent)
        return Lag(
            absent,
            f"{named_ranks(ranks).capitalize()} timed out in {work}; {whom} did not.",
            f"where {whom} was at that time",
            (f"whether {whom} never called it: no timeout is no proof",),
        )
    if behind:
        each = "; ".join(f"rank {rank} had issued {last}" for rank, last in known.items())
        return Lag(
            behind,
            f"All ranks timed out in {work}, and {named_ranks(behind)} was behind: {each}.",
            f"what {named_ranks(behind)} does between calls",
        )
    return Lag(
        ranks,
        f"All ranks timed out in {work}, and none is known to be behind.",
        "the network and the GPUs: every rank was in the same call",
        ("which rank failed to take part",),
    )
