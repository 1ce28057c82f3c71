"""The timeline as a Chrome/Perfetto trace: a process row per rank, lanes as threads, spans as slices.

Flow arrows follow each chunk from rank 0 through the mesh and back; on CUDA they go from stream to stream,
and a slice inside a transfer's slice shows how long it waited at least (``streams``). Open the file at
https://ui.perfetto.dev or chrome://tracing. Events are those of the "Trace Event Format" document of the
Chromium project: rows with their places (M), slices (X), instants (i), and flows from slice to slice (s, t,
f).
"""

from __future__ import annotations

from typing import Any

import msgspec

from ppwork.plan import Plan
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK
from ppwork.records.spans import STREAM, Entry, Instant, Span
from ppwork.timeline.chunks import TRANSFERS, WAITS, WORK, ChunkSpans, EntriesByRank, aligned, spans_by_chunk
from ppwork.timeline.streams import transfers

PID_BASE = 1000
"""Added to the rank: viewers take process 0 and thread 0 for the kernel's idle task."""
LANES_PER_RANK = 100
IDS = ("call_id", "chunk_index", "cache_epoch")
END = {"ph": "f", "bp": "e"}
"""The end of a flow: in the slice that is open there, and not in the next one."""

Event = dict[str, Any]
"""One event of the trace-event format."""
Moment = tuple[int, Span, int]
"""Rank, span, and a moment inside the span."""


def chrome_trace(entries_by_rank: EntriesByRank, plan: Plan) -> bytes:
    """Return the trace of a run.

    A chunk has one flow through rank 0 and the leader, and one through each follower, from the broadcast to
    the result. A flow whose steps are not in order of time, because the clocks of two hosts differ, is left
    out and counted.

    Args:
        entries_by_rank: Entries of every rank.
        plan: The run's plan, for the roles of its ranks.
    """
    ranks = aligned(entries_by_rank)
    zero = min((_start(entry) for entries in ranks.values() for entry in entries), default=0)
    events: list[Event] = []
    tids: dict[tuple[int, str], int] = {}
    for rank, entries in ranks.items():
        pid = PID_BASE + rank
        lanes = ["main", *sorted({entry.lane for entry in entries} - {"main"})]
        tids |= {(rank, lane): pid * LANES_PER_RANK + index for index, lane in enumerate(lanes)}
        events += rank_rows(rank, f"rank {rank} {plan.topology.role(rank)}", lanes, tids)
        ordered = sorted(entries, key=lambda entry: (_start(entry), -entry.end_ns))
        events += [_event(entry, pid, tids[rank, entry.lane], zero) for entry in ordered]
    for half in transfers(ranks):
        if half.moves_ns > half.span.start_ns:
            wait = Span("waits", half.span.lane, half.span.start_ns, half.moves_ns, half.span.call_id)
            events.append(_event(wait, PID_BASE + half.rank, tids[half.rank, wait.lane], zero))
    left_out = 0
    for index, spans in enumerate(spans_by_chunk(ranks).values()):
        for branch, steps in enumerate(_journeys(spans, list(ranks))):
            if [at for _, _, at in steps] != sorted(at for _, _, at in steps):
                left_out += 1
            elif len(steps) > 1:
                events += _flow(index * len(ranks) + branch, steps, tids, zero)
    document = {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {"plan_digest": plan.digest, "flows_left_out": left_out},
    }
    return msgspec.json.encode(document)


def _start(entry: Entry) -> int:
    return entry.at_ns if isinstance(entry, Instant) else entry.start_ns


def rank_rows(rank: int, name: str, lanes: list[str], tids: dict[tuple[int, str], int]) -> list[Event]:
    """Return the names and places of a rank's rows; ``tids`` has the ids of its lanes."""
    pid, main = PID_BASE + rank, tids[rank, "main"]

    def row(kind: str, tid: int, **args: str | int) -> Event:
        return {"ph": "M", "name": kind, "pid": pid, "tid": tid, "args": args}

    rows = [row("process_name", main, name=name), row("process_sort_index", main, sort_index=rank)]
    for index, lane in enumerate(lanes):
        tid = tids[rank, lane]
        rows += [row("thread_name", tid, name=lane), row("thread_sort_index", tid, sort_index=index)]
    return rows


def _event(entry: Entry, pid: int, tid: int, zero: int) -> Event:
    args: dict[str, Any] = {key: getattr(entry, key) for key in IDS if getattr(entry, key) >= 0}
    row = {"name": entry.name, "pid": pid, "tid": tid, "ts": (_start(entry) - zero) / 1e3, "args": args}
    if isinstance(entry, Instant):
        args |= entry.figures
        return {"ph": "i", **row, "cat": "instant", "s": "t"}
    on_stream = entry.lane.startswith(STREAM)
    waits, moves = ("waits",) if on_stream else WAITS, (*TRANSFERS, *WAITS) if on_stream else TRANSFERS
    kinds = {"work": WORK, "transfer": moves, "wait": waits}
    kind = next((kind for kind, names in kinds.items() if entry.name in names), "other")
    return {"ph": "X", **row, "cat": kind, "dur": (entry.end_ns - entry.start_ns) / 1e3}


def _journeys(spans: ChunkSpans, ranks: list[int]) -> list[list[Moment]]:
    leader = LEADER_RANK
    main = [(STAGE0_RANK, "send"), (leader, "receive"), (leader, "broadcast"), (leader, "generate"),
            (leader, "send_result"), (STAGE0_RANK, "decode")]  # fmt: skip
    branches = [[(leader, "broadcast"), (rank, "receive"), (rank, "generate"), (leader, "send_result")]
                for rank in ranks if rank > leader]  # fmt: skip
    return [[_step(rank, spans[rank, name][0]) for rank, name in way if (rank, name) in spans]
            for way in [main, *branches]]  # fmt: skip


def _step(rank: int, span: Span) -> Moment:
    # A receive begins before its message was sent; at its end the chunk is there, and the slice still open.
    return rank, span, max(span.start_ns, span.end_ns - 1) if span.name in WAITS else span.start_ns


def _flow(number: int, steps: list[Moment], tids: dict[tuple[int, str], int], zero: int) -> list[Event]:
    events: list[Event] = []
    for rank, span, at in steps:
        row = {"pid": PID_BASE + rank, "tid": tids[rank, span.lane], "ts": (at - zero) / 1e3}
        events.append({"ph": "t", "name": f"chunk {span.chunk_index}", "cat": "chunk", "id": number, **row})
    events[0]["ph"] = "s"
    events[-1] |= END
    return events
