"""The words of a timeline: its sentence says period, share and overlap, its table has a line per chunk."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from ppwork.errors import listed
from ppwork.pictures.tables import Table
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK
from ppwork.records.spans import Span
from ppwork.timeline.chunks import (
    STAGE0_SPANS,
    ChunkSpans,
    EntriesByRank,
    aligned,
    busy,
    chunk_durations,
    common_ns,
    emissions,
    on_device,
    periods_ms,
    spans_by_chunk,
    total_ns,
)
from ppwork.timeline.measures import Measures, dropped_chunks, measure, stage1_ms_of
from ppwork.timeline.streams import hidden, streams, transfers


def rate_words(entries_by_rank: EntriesByRank, depth: int) -> str:
    """Return how often the whole run emitted a chunk, for a title; nothing if it has no period."""
    ranks = aligned(entries_by_rank)
    period_ms = _measures(ranks, *_counted(ranks, None, None), depth).period_ms
    return "" if period_ms is None else f"; the whole run: one every {period_ms:.0f} ms"


def timeline_finding(
    entries_by_rank: EntriesByRank,
    *,
    first_chunk: int | None = None,
    last_chunk: int | None = None,
    depth: int = 1,
) -> str:
    """State in one sentence what a timeline shows: period, the leader's share, overlap of the stages.

    Args:
        entries_by_rank: Entries of every rank.
        first_chunk: First chunk that counts; default: the second of the run, after warm-up.
        last_chunk: Last chunk that counts; default: the last of the run.
        depth: The run's ``in_flight_depth``: the period is over rounds of it, as in the summary.
    """
    ranks = aligned(entries_by_rank)
    emits = emissions(ranks)
    first, last = _counted(ranks, first_chunk, last_chunk)
    leader = ranks.get(LEADER_RANK, [])
    measures = _measures(ranks, first, last, depth)
    if measures.period_ms is None or measures.from_chunk is None or measures.to_chunk is None:
        shown = [k for k in emits if first <= k <= last]
        if dropped := [k for k in dropped_chunks(ranks.get(STAGE0_RANK, ())) if first <= k <= last]:
            emitted = listed(shown) or "none"
            return f"Of chunks {first} to {last}, emitted: {emitted}; made, then stale: {listed(dropped)}."
        if emits and (first_chunk is not None or last_chunk is not None):
            return f"Of chunks {first} to {last}, {len(shown)} were emitted, too few in a row for a period."
        return f"{len(emits)} chunk{'' if len(emits) == 1 else 's'} emitted: too few for a period."
    chunks = [k for k in emits if measures.from_chunk - 1 <= k <= measures.to_chunk]
    start, end = emits[chunks[0]], emits[chunks[-1]]
    generating = busy(on_device(leader), ("generate",), start, end)
    working = busy(on_device(ranks[STAGE0_RANK]), STAGE0_SPANS, start, end)
    both = common_ns(working, generating) / max(total_ns(working), 1)
    meanwhile = (
        f"{both:.0%} of stage 0's work happens while the leader computes"
        if both
        else "stage 0 and the mesh never work at the same time"
    )
    first, last = measures.from_chunk, measures.to_chunk
    at = f"At chunk {last}" if first == last else f"Over chunks {first} to {last}"
    share = f"{total_ns(generating) / max(end - start, 1):.0%}"
    shared = f"the mesh leader (rank {LEADER_RANK}) computes {share} of the time from emission {chunks[0]}"
    return (
        f"{at} the period is {measures.period_ms:.1f} ms, {shared} to {chunks[-1]}, and {meanwhile}."
        f"{_hidden(ranks, first, last)}"
    )


def _counted(ranks: EntriesByRank, first: int | None, last: int | None) -> tuple[int, int]:
    """Return the first and the last chunk that count; default: all but the first."""
    emits = emissions(ranks)
    first = first if first is not None else min(emits, default=0) + 1
    return first, last if last is not None else max(emits, default=0)


def _measures(ranks: EntriesByRank, first: int, last: int, depth: int) -> Measures:
    stage0 = [entry for entry in ranks.get(STAGE0_RANK, ()) if first - 1 <= entry.chunk_index <= last]
    stage1_ms = stage1_ms_of(stage0) or chunk_durations(ranks.get(LEADER_RANK, []), "generate")
    return measure(stage0, stage1_ms, depth=depth)


def _hidden(ranks: EntriesByRank, first: int, last: int) -> str:
    counted = [was for chunk, was in hidden(ranks).items() if first <= chunk <= last]
    if not counted:
        return ""
    return (
        f" {sum(counted)} of {len(counted)} transfers to the mesh ended behind the leader's kernels on the "
        "chunk before."
    )


def timeline_table(
    runs: Sequence[tuple[str, EntriesByRank, int]], first: int | None = None, last: int | None = None
) -> Table:
    """Return timelines as a table: a line per chunk, then means without the first chunk.

    ``forward`` is the leader's way from the end of its receive to the end of its broadcast; a dash is
    something that did not happen, such as the decode of a result that was dropped. Of what ran on a stream
    the time is the stream's, of a transfer without its wait. Of several runs a column has the names. The last
    line's period is the run's, which is over rounds of ``depth`` chunks.
    """
    mesh = sorted({rank for _, entries, _ in runs for rank in entries} - {STAGE0_RANK})
    generate = [f"gen r{rank}" for rank in mesh]
    head = ["chunk", "epoch", "encode", "preflight", "send", "forward"]
    head += [*generate, "result", "decode", "period"]
    several = len(runs) > 1
    rows = [
        [*([title] if several else []), *row]
        for title, entries, depth in runs
        for row in _rows(entries, mesh, depth, first, last)
    ]
    above = "milliseconds; a row per chunk, then means without the first row, and the run's period"
    return Table([*(["run"] if several else []), *head], rows, above=above)


def _rows(
    entries: EntriesByRank, mesh: Sequence[int], depth: int, first: int | None, last: int | None
) -> Iterator[list[str]]:
    ranks = aligned(entries)
    periods = periods_ms(emissions(ranks))
    waits = {(half.rank, half.span): half.waits_ms for half in transfers(ranks)}
    times: list[list[float | None]] = []
    for k, spans in spans_by_chunk(ranks).items():
        if (first is not None and k < first) or (last is not None and k > last):
            continue
        row = [
            _ms(spans, STAGE0_RANK, "encode", waits),
            _ms(spans, STAGE0_RANK, "preflight", waits),
            _ms(spans, STAGE0_RANK, "send", waits),
            _forward_ms(spans),
            *(_ms(spans, rank, "generate", waits) for rank in mesh),
            _ms(spans, LEADER_RANK, "send_result", waits),
            _ms(spans, STAGE0_RANK, "decode", waits),
            periods.get(k),
        ]
        times.append(row)
        epoch = max(span.cache_epoch for of_name in spans.values() for span in of_name)
        yield [str(k), str(epoch), *map(_text, row)]
    columns = [[ms for ms in column if ms is not None] for column in zip(*(times[1:] or times), strict=True)]
    means = [statistics.fmean(column) if column else None for column in columns]
    period_ms = _measures(ranks, *_counted(ranks, first, last), depth).period_ms
    yield ["mean", "", *map(_text, means[:-1]), _text(period_ms)]


def _ms(spans: ChunkSpans, rank: int, name: str, waits: Mapping[tuple[int, Span], float]) -> float | None:
    of_name = spans.get((rank, name))
    return sum(span.ms - waits.get((rank, span), 0.0) for span in of_name) if of_name else None


def _forward_ms(spans: ChunkSpans) -> float | None:
    received, sent = spans.get((LEADER_RANK, "receive")), spans.get((LEADER_RANK, "broadcast"))
    return (sent[-1].end_ns - received[-1].end_ns) / 1e6 if received and sent else None


def _text(ms: float | None) -> str:
    return "-" if ms is None else f"{ms:.2f}"


def stream_tables(entries_by_rank: EntriesByRank) -> list[Table]:
    """Return a table with a row per stream; none of a run without streams.

    Args:
        entries_by_rank: Of all ranks, on one clock.
    """
    rows = [
        [
            str(one.rank),
            one.lane,
            str(one.spans),
            f"{one.busy:.0%}",
            f"{one.busy_ms:.2f}",
            f"{one.waits_ms:.2f}",
        ]
        for one in streams(entries_by_rank)
    ]
    if not rows:
        return []
    head = ["rank", "stream", "spans", "busy", "works or moves, ms", "waits, ms"]
    above = "streams of the device; medians of a span"
    below = (
        "a transfer waits until all its ranks have begun: waits are at least, moves at most what stands here"
    )
    return [Table(head, rows, above=above, below=below)]
