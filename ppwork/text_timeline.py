"""A timeline in words: a table with a line per chunk, and the sentence that says what its picture shows."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING

from ppwork.lives import (
    ChunkSpans,
    EntriesByRank,
    aligned,
    busy,
    common_ns,
    emissions,
    periods_ms,
    spans_by_chunk,
    total_ns,
)
from ppwork.timeline import STAGE0_SPANS, chunk_durations, measure, stage1_ms_of
from ppwork.topology import LEADER_RANK, STAGE0_RANK

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def alt_text(
    entries_by_rank: EntriesByRank,
    *,
    first_chunk: int | None = None,
    last_chunk: int | None = None,
    clock_offset_ns: Mapping[int, int] | None = None,
) -> str:
    """State in one sentence what a timeline shows: period, the leader's share, overlap of the stages.

    Args:
        entries_by_rank: Entries of every rank.
        first_chunk: First chunk that counts; default: the second of the run, after warm-up.
        last_chunk: Last chunk that counts; default: the last of the run.
        clock_offset_ns: What to subtract from the times of each rank; default: what the entries say.
    """
    ranks = aligned(entries_by_rank, clock_offset_ns)
    emits = emissions(ranks)
    first = first_chunk if first_chunk is not None else min(emits, default=0) + 1
    last = last_chunk if last_chunk is not None else max(emits, default=0)
    stage0 = [entry for entry in ranks.get(STAGE0_RANK, ()) if first - 1 <= entry.chunk_index <= last]
    leader = ranks.get(LEADER_RANK, [])
    period = measure(stage0, stage1_ms_of(stage0) or chunk_durations(leader, "generate")).period_ms
    inside = [at for k, at in emits.items() if first - 1 <= k <= last]
    if period is None:
        return f"{len(emits)} chunk{'' if len(emits) == 1 else 's'} emitted: too few for a period."
    start, end = inside[0], inside[-1]
    generating = busy(leader, ("generate",), start, end)
    working = busy(ranks[STAGE0_RANK], STAGE0_SPANS, start, end)
    both = common_ns(working, generating) / max(total_ns(working), 1)
    meanwhile = (
        f"{both:.0%} of stage 0's work happens while the leader computes"
        if both
        else "stage 0 and the mesh never work at the same time"
    )
    at = f"At chunk {last}" if first >= last else f"Over chunks {max(first, min(emits) + 1)} to {last}"
    return (
        f"{at} the period is {period:.1f} ms, the mesh leader (rank {LEADER_RANK}) computes "
        f"{total_ns(generating) / (end - start):.0%} of the time, and {meanwhile}."
    )


def timeline_table(
    entries_by_rank: EntriesByRank, *, clock_offset_ns: Mapping[int, int] | None = None
) -> str:
    """Return the timeline as a fixed-width table: a line per chunk, then medians without the first chunk.

    ``forward`` is the leader's way from the end of its receive to the end of its broadcast; a dash is
    something that did not happen, such as the decode of a result that was dropped.
    """
    ranks = aligned(entries_by_rank, clock_offset_ns)
    chunks, periods = spans_by_chunk(ranks), periods_ms(emissions(ranks))
    mesh = [rank for rank in ranks if rank != STAGE0_RANK]
    generate = [f"gen r{rank}" for rank in mesh]
    names = ["encode", "send", "forward", *generate, "result", "decode", "period"]
    rows: dict[int, list[float | None]] = {}
    for k, spans in chunks.items():
        rows[k] = [
            _ms(spans, STAGE0_RANK, "encode"),
            _ms(spans, STAGE0_RANK, "send"),
            _forward_ms(spans),
            *(_ms(spans, rank, "generate") for rank in mesh),
            _ms(spans, LEADER_RANK, "send_result"),
            _ms(spans, STAGE0_RANK, "decode"),
            periods.get(k),
        ]
    steady = list(rows.values())[1:] or list(rows.values())
    columns = [[value for value in column if value is not None] for column in zip(*steady, strict=True)]
    medians = [statistics.median(column) if column else None for column in columns]
    lines = [_line("chunk", "epoch", names), *(_row(str(k), _epoch(chunks[k]), rows[k]) for k in rows)]
    return "\n".join(
        [
            "milliseconds; a row per chunk, then medians without the first row",
            *lines,
            _row("median", "", medians),
        ]
    )


def _ms(spans: ChunkSpans, rank: int, name: str) -> float | None:
    found = spans.get((rank, name))
    return sum(span.ms for span in found) if found else None


def _forward_ms(spans: ChunkSpans) -> float | None:
    received, sent = spans.get((LEADER_RANK, "receive")), spans.get((LEADER_RANK, "broadcast"))
    return (sent[-1].end_ns - received[-1].end_ns) / 1e6 if received and sent else None


def _epoch(spans: ChunkSpans) -> str:
    return str(max(span.cache_epoch for found in spans.values() for span in found))


def _row(head: str, epoch: str, values: Sequence[float | None]) -> str:
    return _line(head, epoch, ["-" if value is None else f"{value:.2f}" for value in values])


def _line(head: str, epoch: str, cells: Sequence[str]) -> str:
    return f"{head:>6} {epoch:>5} " + " ".join(f"{cell:>9}" for cell in cells)
