"""Entries of all ranks by chunk or by call: the one grouped view that measures, pictures and diagnoses share.

It says which spans are work, transfer or waiting, which belong to a chunk, in which order lanes are shown,
which part of a long run is worth drawing, and how the clocks of several hosts are aligned. Ranks of one host
share ``time.monotonic_ns``; only comparisons between ranks depend on that.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from ppwork.errors import PlanError
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK
from ppwork.records.clocks import HOST, clock_offsets
from ppwork.records.run import NO_CHUNKS
from ppwork.records.spans import DEVICE_LANE, STREAM, Entry, Instant, Span

EntriesByRank = Mapping[int, Sequence[Entry]]
ChunkSpans = dict[tuple[int, str], list[Span]]
"""The spans of one chunk, by rank and name."""
SpansByCall = dict[int, Span]
Intervals = list[tuple[int, int]]
"""Disjoint intervals, in order."""

STAGE0_SPANS = ("encode", "preflight", "decode")
WORK = (*STAGE0_SPANS, "generate")
TRANSFER_AT = {
    "envelope.send": (STAGE0_RANK, "down_pg", "send"),
    "mesh.broadcast": (LEADER_RANK, "mesh_pg", "broadcast"),
    "result.send": (LEADER_RANK, "up_pg", "send_result"),
}
"""Sender, group and span of the transfer that begins at each commitment point."""
TRANSFERS = tuple(transfer for _, _, transfer in TRANSFER_AT.values())
WAITS = ("receive",)
"""A receive is posted early: most of its time is waiting for the peer."""
CHUNKS_SHOWN = 5
"""Number of chunks shown of a longer run."""
RANK_GAP = 0.35
"""Extra distance between the lanes of two ranks, in lanes."""
_LIFE = {True: ("main", "down_pg", "up_pg"), False: ("down_pg", "mesh_pg", "main", "up_pg")}
"""Lanes of stage 0, or of the mesh, in the order of a chunk's life; lanes of streams come below."""


def aligned(entries_by_rank: EntriesByRank) -> dict[int, list[Entry]]:
    """Return the entries as recorded, with the offset of each rank's clock subtracted.

    A rank whose clock was not compared with any gets no entries: its place in time is not known. Instants
    that name a rank's clock are left out, because they are no moments of the run.
    """
    offsets = clock_offsets(entries_by_rank)
    return {
        rank: [_earlier(entry, offsets[rank]) for entry in entries if not entry.name.startswith(HOST)]
        if rank in offsets
        else []
        for rank, entries in sorted(entries_by_rank.items())
    }


def _earlier(entry: Entry, by_ns: int) -> Entry:
    if not by_ns:
        return entry
    if isinstance(entry, Instant):
        return msgspec.structs.replace(entry, at_ns=entry.at_ns - by_ns)
    return msgspec.structs.replace(entry, start_ns=entry.start_ns - by_ns, end_ns=entry.end_ns - by_ns)


def calls_with_chunks(entries_by_rank: EntriesByRank) -> frozenset[int]:
    """Return the call ids that carried a chunk: a NOOP or SHUTDOWN repeats the index of the last chunk."""
    return frozenset(
        entry.call_id
        for entries in entries_by_rank.values()
        for entry in entries
        if isinstance(entry, Span) and entry.name in ("encode", "generate") and entry.chunk_index >= 0
    )


def is_of_chunk(entry: Entry, calls: frozenset[int]) -> bool:
    """Say whether an entry belongs to the life of a chunk; ``calls`` are the ``calls_with_chunks``."""
    return entry.chunk_index >= 0 and (entry.call_id < 0 or entry.call_id in calls)


def on_device(entries: Iterable[Entry]) -> list[Entry]:
    """Return one rank's entries without the host's half of work that ran on a stream.

    The host's span of such a step is the launch of its kernels, or the frame that announced its tensors. If
    the stream's span has no ids, it gets the host's: ids are made after the chunk is encoded.
    """
    entries = list(entries)
    if not any(entry.lane.startswith(STREAM) for entry in entries):
        return entries
    host: dict[tuple[str, int], Span] = {}
    for entry in entries:
        if isinstance(entry, Span) and not entry.lane.startswith(STREAM):
            host.setdefault((entry.name, entry.chunk_index), entry)

    def with_ids(entry: Entry) -> Entry:
        launch = host.get((entry.name, entry.chunk_index))
        if entry.call_id >= 0 or launch is None or not entry.lane.startswith(STREAM):
            return entry
        return msgspec.structs.replace(entry, call_id=launch.call_id, cache_epoch=launch.cache_epoch)

    entries = [with_ids(entry) for entry in entries]
    launched = {(entry.name, entry.call_id) for entry in entries if entry.lane.startswith(STREAM)}
    return [e for e in entries if e.lane.startswith(STREAM) or (e.name, e.call_id) not in launched]


def on_streams(entries: Iterable[Entry]) -> list[Span]:
    """Return one rank's spans of chunks on CUDA streams."""
    return [
        entry
        for entry in on_device(entries)
        if isinstance(entry, Span) and entry.lane.startswith(STREAM) and entry.chunk_index >= 0
    ]


def spans_by_chunk(entries_by_rank: EntriesByRank) -> dict[int, ChunkSpans]:
    """Group the spans by chunk, in order of the chunks; for work on a stream, only the stream's span."""
    calls = calls_with_chunks(entries_by_rank)
    chunks: dict[int, ChunkSpans] = {}
    for rank, entries in entries_by_rank.items():
        for entry in on_device(entries):
            if isinstance(entry, Span) and is_of_chunk(entry, calls):
                chunks.setdefault(entry.chunk_index, {}).setdefault((rank, entry.name), []).append(entry)
    return dict(sorted(chunks.items()))


def entries_of_call(entries_by_rank: EntriesByRank, call_id: int) -> dict[int, list[Entry]]:
    """Return each rank's entries for one call; a rank that did nothing has an empty list."""
    ranks = entries_by_rank.items()
    return {rank: [e for e in on_device(entries) if e.call_id == call_id] for rank, entries in ranks}


def spans_by_call(entries: Iterable[Entry], name: str) -> SpansByCall:
    """Return one rank's spans with this name, by call id."""
    return {e.call_id: e for e in spans_of(on_device(entries), (name,)) if e.call_id >= 0}


def moments_by_call(entries: Iterable[Entry], name: str) -> dict[int, int]:
    """Return one rank's instants with this name, by call id, in nanoseconds of its clock."""
    return {e.call_id: e.at_ns for e in entries if isinstance(e, Instant) and e.name == name}


def spans_of(entries: Iterable[Entry], names: Sequence[str]) -> list[Span]:
    """Return one rank's spans with these names, in the order in which they ended."""
    return [entry for entry in entries if isinstance(entry, Span) and entry.name in names]


def steps_of(entries: Iterable[Entry], *names: str) -> list[Span]:
    """Return the spans of these steps; for a step that ran on a device, its span there, not its launch."""
    return [span for span in spans_of(on_device(entries), names) if span.chunk_index >= 0]


def chunk_durations(entries: Iterable[Entry], *names: str) -> dict[int, float]:
    """Return milliseconds per chunk: the sum of one rank's spans with these names."""
    sums: dict[int, float] = {}
    for span in steps_of(entries, *names):
        sums[span.chunk_index] = sums.get(span.chunk_index, 0.0) + span.ms
    return sums


def emissions(entries_by_rank: EntriesByRank) -> dict[int, int]:
    """Return the moment of emission of each chunk, in order of the chunks."""
    return {
        entry.chunk_index: entry.at_ns
        for entry in sorted(entries_by_rank.get(STAGE0_RANK, ()), key=lambda entry: entry.chunk_index)
        if isinstance(entry, Instant) and entry.name == "emit"
    }


def periods_ms(emits: Mapping[int, int]) -> dict[int, float]:
    """Return ``emit_k - emit_(k-1)`` for chunks that have both, in milliseconds."""
    return {k: (at - emits[k - 1]) / 1e6 for k, at in emits.items() if k - 1 in emits}


def lanes_of(entries_by_rank: EntriesByRank) -> list[tuple[int, str]]:
    """Return rank and lane of all entries of chunks, by rank, then in the order of a chunk's life."""
    calls = calls_with_chunks(entries_by_rank)
    every = ((rank, entry) for rank, entries in entries_by_rank.items() for entry in entries)
    lanes = {(rank, entry.lane) for rank, entry in every if is_of_chunk(entry, calls)}

    def order(item: tuple[int, str]) -> tuple[int, bool, int, str]:
        rank, lane = item
        life = _LIFE[rank == STAGE0_RANK]
        place = "main" if lane == DEVICE_LANE else lane.removeprefix(STREAM)
        return rank, lane.startswith(STREAM), life.index(place) if place in life else len(life), lane

    return sorted(lanes, key=order)


def busy(entries: Iterable[Entry], names: Sequence[str], start_ns: int, end_ns: int) -> Intervals:
    """Return when spans with these names ran, within the given time."""
    merged: Intervals = []
    for span in sorted(spans_of(entries, names), key=lambda span: span.start_ns):
        start, end = max(span.start_ns, start_ns), min(span.end_ns, end_ns)
        if start >= end:
            continue
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
        else:
            merged.append((start, end))
    return merged


def total_ns(intervals: Intervals) -> int:
    """Return the sum of the intervals' lengths."""
    return sum(end - start for start, end in intervals)


def common_ns(first: Intervals, second: Intervals) -> int:
    """Return the nanoseconds that are in both."""
    common, i, j = 0, 0, 0
    while i < len(first) and j < len(second):
        common += max(0, min(first[i][1], second[j][1]) - max(first[i][0], second[j][0]))
        i, j = (i + 1, j) if first[i][1] < second[j][1] else (i, j + 1)
    return common


@dataclass
class Window:
    """The part of a run that is drawn; ``ranks`` still has all entries, on one clock."""

    ranks: dict[int, list[Entry]]
    first: int
    last: int
    start_ns: int
    end_ns: int
    lanes: list[tuple[int, str]]
    rows: dict[tuple[int, str], float] = field(init=False)
    """Height of the middle of each lane, in rows; each rank begins with a gap."""

    def __post_init__(self) -> None:
        ranks = sorted({rank for rank, _ in self.lanes})
        self.rows = {lane: number + RANK_GAP * ranks.index(lane[0]) for number, lane in enumerate(self.lanes)}

    @property
    def height(self) -> float:
        """Number of rows, with the gaps."""
        return max(self.rows.values()) + 1

    def visible_chunks(self) -> set[int]:
        """Return the chunks that did more than wait in this time, neighbours included."""
        chunks = spans_by_chunk(self.ranks)
        return {k for k, spans in chunks.items() if any(map(self.shows, _moving(spans)))}

    def shows(self, span: Span) -> bool:
        """Say whether a span reaches into this time by more than the width of a line."""
        hair = (self.end_ns - self.start_ns) // 500 if span.start_ns < self.start_ns else 0
        return span.end_ns > self.start_ns + hair and span.start_ns < self.end_ns

    @property
    def length_ms(self) -> float:
        """Milliseconds that are shown."""
        return (self.end_ns - self.start_ns) / 1e6

    def at(self, time_ns: int) -> float:
        """Return milliseconds from the start of the window, limited to its two ends."""
        return (min(max(time_ns, self.start_ns), self.end_ns) - self.start_ns) / 1e6


def window_of(entries_by_rank: EntriesByRank, first: int | None = None, last: int | None = None) -> Window:
    """Choose what is drawn: the chunks asked for, else an ordinary stretch, or all of a short run.

    Raises:
        PlanError: The run has no spans of a chunk, or none of the chunks asked for.
    """
    ranks = aligned(entries_by_rank)
    chunks, emits = spans_by_chunk(ranks), emissions(ranks)
    if not chunks:
        raise PlanError("The run has no spans of any chunk.", check_first=NO_CHUNKS)
    if first is None and last is None:
        first, last = _steady(list(chunks), periods_ms(emits))
    first, last = min(chunks) if first is None else first, max(chunks) if last is None else last
    shown = [spans for k, spans in chunks.items() if first <= k <= last]
    if not shown:
        raise PlanError(
            f"Chunks {first} to {last} were asked for; the run has {min(chunks)} to {max(chunks)}.",
            check_first="--chunks FIRST:LAST",
        )
    moving = [span for spans in shown for span in _moving(spans)]
    start = min(span.start_ns for span in moving)
    end = max([span.end_ns for span in moving] + [at for k, at in emits.items() if first <= k <= last])
    return Window(ranks, first, last, start, max(end, start + 1), lanes_of(ranks))


def _moving(spans: ChunkSpans) -> Iterator[Span]:
    """Yield the spans of a chunk in which the chunk does not wait."""
    return (span for (_, name), of_name in spans.items() for span in of_name if name not in WAITS)


def _steady(chunks: list[int], periods: dict[int, float]) -> tuple[int, int]:
    """Choose the most ordinary stretch, whose periods are nearest to the median; all of a short run."""
    middle = statistics.median(periods.values()) if periods else 0.0
    stretches = [range(k, k + CHUNKS_SHOWN) for k in chunks[1:]]
    stretches = [stretch for stretch in stretches if all(k in periods for k in stretch)]
    if len(chunks) <= CHUNKS_SHOWN + 1 or not stretches:
        return chunks[0], chunks[: CHUNKS_SHOWN + 1][-1]
    best = min(stretches, key=lambda stretch: sum(abs(periods[k] - middle) for k in stretch))
    return best[0], best[-1]
