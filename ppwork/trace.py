"""The timeline as a Chrome/Perfetto trace (trace-event format, JSON).

One process row per rank, lanes as threads, spans as slices, and flow arrows that follow each chunk from
rank 0 through the mesh and back. Open the file at https://ui.perfetto.dev or chrome://tracing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.lives import TRANSFERS, WAITS, WORK, ChunkSpans, EntriesByRank, aligned, spans_by_chunk
from ppwork.timeline import Entry, Instant, Span
from ppwork.topology import LEADER_RANK, STAGE0_RANK
from ppwork.trace_format import Event, FlowBegin, FlowEnd, FlowStep, Mark, Metadata, Slice, check_trace

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ppwork.plan import Plan

__all__ = ["check_trace", "chrome_trace"]

PID_BASE = 1000
"""Added to the rank: viewers take process 0 and thread 0 for the idle task of the kernel."""
LANES_PER_RANK = 100
IDS = ("call_id", "chunk_index", "cache_epoch")


def chrome_trace(
    entries_by_rank: EntriesByRank, plan: Plan, *, clock_offset_ns: Mapping[int, int] | None = None
) -> bytes:
    """Return the trace of a run.

    A chunk has one flow through rank 0 and the leader, and one through each follower, from the broadcast to
    the result. A flow whose steps are not in order of time is left out and counted: the clocks of two hosts
    differ.

    Args:
        entries_by_rank: Entries of every rank.
        plan: The plan of the run, for the names of its ranks.
        clock_offset_ns: What to subtract from the times of each rank; default: what the entries say.
    """
    ranks = aligned(entries_by_rank, clock_offset_ns)
    zero = min((_start(entry) for entries in ranks.values() for entry in entries), default=0)
    events: list[Event] = []
    tids: dict[tuple[int, str], int] = {}
    for rank, entries in ranks.items():
        pid = PID_BASE + rank
        lanes = ["main", *sorted({entry.lane for entry in entries} - {"main"})]
        tids |= {(rank, lane): pid * LANES_PER_RANK + place for place, lane in enumerate(lanes)}
        events += _rows(rank, f"rank {rank} {plan.topology.role(rank)}", lanes, tids)
        ordered = sorted(entries, key=lambda entry: (_start(entry), -_length(entry)))
        events += [_event(entry, pid, tids[rank, entry.lane], zero) for entry in ordered]
    left_out = 0
    for place, spans in enumerate(spans_by_chunk(ranks).values()):
        for branch, steps in enumerate(_journeys(spans, list(ranks))):
            if [at for _, _, at in steps] != sorted(at for _, _, at in steps):
                left_out += 1
            elif len(steps) > 1:
                events += _flow(place * len(ranks) + branch, steps, tids, zero)
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"plan_digest": plan.digest, "flows_left_out": left_out},
    }
    return msgspec.json.encode(document)


def _start(entry: Entry) -> int:
    return entry.at_ns if isinstance(entry, Instant) else entry.start_ns


def _length(entry: Entry) -> int:
    return 0 if isinstance(entry, Instant) else entry.end_ns - entry.start_ns


def _rows(rank: int, name: str, lanes: list[str], tids: dict[tuple[int, str], int]) -> list[Event]:
    pid, main = PID_BASE + rank, tids[rank, "main"]
    rows: list[Event] = [
        Metadata(name="process_name", pid=pid, tid=main, args={"name": name}),
        Metadata(name="process_sort_index", pid=pid, tid=main, args={"sort_index": rank}),
    ]
    for place, lane in enumerate(lanes):
        tid = tids[rank, lane]
        rows.append(Metadata(name="thread_name", pid=pid, tid=tid, args={"name": lane}))
        rows.append(Metadata(name="thread_sort_index", pid=pid, tid=tid, args={"sort_index": place}))
    return rows


def _event(entry: Entry, pid: int, tid: int, zero: int) -> Event:
    args: dict[str, Any] = {key: getattr(entry, key) for key in IDS if getattr(entry, key) >= 0}
    ts = (_start(entry) - zero) / 1e3
    if isinstance(entry, Instant):
        args |= entry.figures
        return Mark(name=entry.name, pid=pid, tid=tid, cat="instant", ts=ts, s="t", args=args)
    kinds = {"work": WORK, "transfer": TRANSFERS, "wait": WAITS}
    kind = next((kind for kind, names in kinds.items() if entry.name in names), "other")
    return Slice(name=entry.name, pid=pid, tid=tid, cat=kind, ts=ts, dur=_length(entry) / 1e3, args=args)


Step = tuple[int, Span, int]
"""Rank, span, and the moment inside it."""


def _journeys(spans: ChunkSpans, ranks: list[int]) -> list[list[Step]]:
    leader = LEADER_RANK
    followers = [rank for rank in ranks if rank > leader]
    main = [(STAGE0_RANK, "send"), (leader, "receive"), (leader, "broadcast"), (leader, "generate"),
            (leader, "send_result"), (STAGE0_RANK, "decode")]  # fmt: skip
    branches = [
        [(leader, "broadcast"), (rank, "receive"), (rank, "generate"), (leader, "send_result")]
        for rank in followers
    ]
    return [[_step(rank, spans[rank, name][0]) for rank, name in way if (rank, name) in spans]
            for way in [main, *branches]]  # fmt: skip


def _step(rank: int, span: Span) -> Step:
    # A receive begins before its message was sent; the chunk is there at its end, and the slice still open.
    return rank, span, max(span.start_ns, span.end_ns - 1) if span.name in WAITS else span.start_ns


def _flow(number: int, steps: list[Step], tids: dict[tuple[int, str], int], zero: int) -> list[Event]:
    made: list[Event] = []
    for place, (rank, span, at) in enumerate(steps):
        where: dict[str, Any] = {
            "name": f"chunk {span.chunk_index}",
            "cat": "chunk",
            "pid": PID_BASE + rank,
            "tid": tids[rank, span.lane],
            "ts": (at - zero) / 1e3,
            "id": number,
        }
        if place == 0:
            made.append(FlowBegin(**where))
        else:
            made.append(FlowEnd(**where, bp="e") if place == len(steps) - 1 else FlowStep(**where))
    return made
