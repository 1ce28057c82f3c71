"""The life of each chunk, put together from the entries of all ranks: what pictures, tables and traces share.

It says which spans are work, transfer or waiting, which belong to a chunk, in which order lanes are shown,
which part of a long run is worth drawing, and how the clocks of several hosts are brought together. Ranks of
one host share ``time.monotonic_ns``; only what compares ranks depends on that.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from ppwork.clocks import clock_offsets
from ppwork.errors import PlanError
from ppwork.timeline import STAGE0_SPANS, Entry, Instant, Span
from ppwork.topology import LEADER_RANK, STAGE0_RANK

if TYPE_CHECKING:
    from collections.abc import Iterable

EntriesByRank = Mapping[int, Sequence[Entry]]
ChunkSpans = dict[tuple[int, str], list[Span]]
"""The spans of one chunk, by rank and name."""
Intervals = list[tuple[int, int]]
"""Disjoint, in order."""

WORK = (*STAGE0_SPANS, "generate")
WAYS = {
    "envelope.send": (STAGE0_RANK, "down_pg", "send"),
    "mesh.broadcast": (LEADER_RANK, "mesh_pg", "broadcast"),
    "result.send": (LEADER_RANK, "up_pg", "send_result"),
}
"""Of what leaves at each commitment point: its sender, its group, and the span of its transfer."""
TRANSFERS = tuple(transfer for _, _, transfer in WAYS.values())
WAITS = ("receive",)
"""A receive is posted early: most of it is waiting for the peer."""
WINDOW = 5
"""Chunks shown of a longer run."""
RANK_GAP = 0.35
"""Between the lanes of two ranks, in lanes."""
_LIFE = {True: ("main", "down_pg", "up_pg"), False: ("down_pg", "mesh_pg", "main", "up_pg")}


def aligned(
    entries_by_rank: EntriesByRank, clock_offset_ns: Mapping[int, int] | None = None
) -> dict[int, list[Entry]]:
    """Return the entries, as recorded, with each rank's clock offset subtracted.

    Args:
        entries_by_rank: Entries of every rank.
        clock_offset_ns: What to subtract from the times of each rank; default: what the entries say.
    """
    offsets = clock_offsets(entries_by_rank) if clock_offset_ns is None else clock_offset_ns
    return {
        rank: [_shifted(entry, offsets.get(rank, 0)) for entry in entries]
        for rank, entries in sorted(entries_by_rank.items())
    }


def _shifted(entry: Entry, offset_ns: int) -> Entry:
    if not offset_ns:
        return entry
    if isinstance(entry, Instant):
        return msgspec.structs.replace(entry, at_ns=entry.at_ns - offset_ns)
    return msgspec.structs.replace(
        entry, start_ns=entry.start_ns - offset_ns, end_ns=entry.end_ns - offset_ns
    )


def carriers(entries_by_rank: EntriesByRank) -> frozenset[int]:
    """Return the call ids that carried a chunk: a NOOP or SHUTDOWN repeats the index of the last chunk."""
    return frozenset(
        entry.call_id
        for entries in entries_by_rank.values()
        for entry in entries
        if isinstance(entry, Span) and entry.name in ("encode", "generate") and entry.chunk_index >= 0
    )


def is_of_chunk(entry: Entry, calls: frozenset[int]) -> bool:
    """Whether an entry belongs to the life of a chunk; ``calls`` are the ``carriers``."""
    return entry.chunk_index >= 0 and (entry.call_id < 0 or entry.call_id in calls)


def spans_by_chunk(entries_by_rank: EntriesByRank) -> dict[int, ChunkSpans]:
    """Group the spans by chunk, in order of the chunks."""
    calls = carriers(entries_by_rank)
    found: dict[int, ChunkSpans] = {}
    for rank, entries in entries_by_rank.items():
        for entry in entries:
            if isinstance(entry, Span) and is_of_chunk(entry, calls):
                found.setdefault(entry.chunk_index, {}).setdefault((rank, entry.name), []).append(entry)
    return dict(sorted(found.items()))


def emissions(entries_by_rank: EntriesByRank) -> dict[int, int]:
    """Return the moment of emission of each chunk, in order of the chunks."""
    return {
        entry.chunk_index: entry.at_ns
        for entry in sorted(entries_by_rank.get(STAGE0_RANK, ()), key=lambda entry: entry.chunk_index)
        if isinstance(entry, Instant) and entry.name == "emit"
    }


def periods_ms(emits: Mapping[int, int]) -> dict[int, float]:
    """Return ``emit_k - emit_(k-1)`` where both are there, in milliseconds."""
    return {k: (at - emits[k - 1]) / 1e6 for k, at in emits.items() if k - 1 in emits}


def lanes_of(entries_by_rank: EntriesByRank) -> list[tuple[int, str]]:
    """Return rank and lane of everything that chunks pass, by rank, then by the life of a chunk."""
    calls = carriers(entries_by_rank)
    found = {
        (rank, entry.lane)
        for rank, entries in entries_by_rank.items()
        for entry in entries
        if is_of_chunk(entry, calls)
    }

    def place(item: tuple[int, str]) -> tuple[int, int, str]:
        life = _LIFE[item[0] == STAGE0_RANK]
        return item[0], life.index(item[1]) if item[1] in life else len(life), item[1]

    return sorted(found, key=place)


def busy(entries: Iterable[Entry], names: Sequence[str], start_ns: int, end_ns: int) -> Intervals:
    """Return when spans with these names ran, inside the given time."""
    merged: Intervals = []
    spans = [entry for entry in entries if isinstance(entry, Span) and entry.name in names]
    for span in sorted(spans, key=lambda span: span.start_ns):
        start, end = max(span.start_ns, start_ns), min(span.end_ns, end_ns)
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def total_ns(intervals: Intervals) -> int:
    """Return the sum of the lengths."""
    return sum(end - start for start, end in intervals)


def common_ns(left: Intervals, right: Intervals) -> int:
    """Return for how long both ran at the same time."""
    found, i, j = 0, 0, 0
    while i < len(left) and j < len(right):
        found += max(0, min(left[i][1], right[j][1]) - max(left[i][0], right[j][0]))
        i, j = (i + 1, j) if left[i][1] < right[j][1] else (i, j + 1)
    return found


@dataclass
class View:
    """The part of a run that is drawn; ``ranks`` still has all entries, on one clock."""

    ranks: dict[int, list[Entry]]
    first: int
    last: int
    start_ns: int
    end_ns: int
    lanes: list[tuple[int, str]]
    rows: dict[tuple[int, str], float] = field(init=False)
    """Height of each lane's middle; one row is 1, a new rank begins with a gap."""

    def __post_init__(self) -> None:
        ranks = sorted({rank for rank, _ in self.lanes})
        self.rows = {lane: place + RANK_GAP * ranks.index(lane[0]) for place, lane in enumerate(self.lanes)}

    @property
    def height(self) -> float:
        """Of all rows with their gaps, in rows."""
        return max(self.rows.values()) + 1

    def visible_chunks(self) -> set[int]:
        """Return the chunks that did anything but wait in this time, neighbours included."""
        return {
            k
            for k, spans in spans_by_chunk(self.ranks).items()
            for (_, name), found in spans.items()
            for span in found
            if name not in WAITS and self.shows(span)
        }

    def shows(self, span: Span) -> bool:
        """Whether a span reaches into this time by more than the width of a line."""
        hair = (self.end_ns - self.start_ns) // 500 if span.start_ns < self.start_ns else 0
        return span.end_ns > self.start_ns + hair and span.start_ns < self.end_ns

    @property
    def length_ms(self) -> float:
        """Time that is shown."""
        return (self.end_ns - self.start_ns) / 1e6

    def at(self, time_ns: int) -> float:
        """Return milliseconds from the first shown span, cut off at both ends of the view."""
        return (min(max(time_ns, self.start_ns), self.end_ns) - self.start_ns) / 1e6


def view_of(
    entries_by_rank: EntriesByRank,
    first: int | None,
    last: int | None,
    offsets: Mapping[int, int] | None,
) -> View:
    """Choose what is drawn: the chunks asked for, else an ordinary stretch, or all of a short run.

    Raises:
        PlanError: The run has no spans of a chunk, or none of those asked for.
    """
    ranks = aligned(entries_by_rank, offsets)
    chunks, emits = spans_by_chunk(ranks), emissions(ranks)
    if not chunks:
        raise PlanError("The run has no spans of any chunk.", check_first="did it get past its first chunk?")
    if first is None and last is None:
        first, last = _steady(list(chunks), periods_ms(emits))
    first, last = min(chunks) if first is None else first, max(chunks) if last is None else last
    shown = [spans for k, spans in chunks.items() if first <= k <= last]
    if not shown:
        raise PlanError(
            f"Chunks {first} to {last} were asked for; the run has {min(chunks)} to {max(chunks)}.",
            check_first="--chunks FIRST:LAST",
        )
    moving = [
        span for spans in shown for (_, name), found in spans.items() for span in found if name not in WAITS
    ]
    start = min(span.start_ns for span in moving)
    end = max([span.end_ns for span in moving] + [at for k, at in emits.items() if first <= k <= last])
    return View(ranks, first, last, start, max(end, start + 1), lanes_of(ranks))


def _steady(chunks: list[int], periods: dict[int, float]) -> tuple[int, int]:
    """Choose the most ordinary stretch: periods nearest to the median; all of a short run."""
    middle = statistics.median(periods.values()) if periods else 0.0
    stretches = [range(k, k + WINDOW) for k in chunks[1:] if all(j in periods for j in range(k, k + WINDOW))]
    if len(chunks) <= WINDOW + 1 or not stretches:
        return chunks[0], chunks[: WINDOW + 1][-1]
    best = min(stretches, key=lambda stretch: sum(abs(periods[k] - middle) for k in stretch))
    return best[0], best[-1]
