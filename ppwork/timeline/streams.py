"""CUDA streams: which part of a transfer waits and which moves, which work hides it, and what waits for what.

A transfer's span is the time between two events of its link's stream. The first event comes before NCCL
begins: it passes when the stream reaches it, though the peer may come much later. So a transfer counts as
*moving* only from the moment when the last of its ranks had begun its half, and as *waiting* until then.
Halves of other ranks are on other clocks, each as exact as ``CudaClock.uncertainty_ns``.

That bound is one-sided. NCCL may delay a transfer whose halves have all begun, behind the launch of a kernel
(``NCCL_LAUNCH_ORDER_IMPLICIT``), and no event sees that: the times here are least values for waits and most
values for moves. Only the end is certain. A transfer is *hidden* only if it has ended on the leader's device
before the generator's work on the previous chunk has.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from itertools import pairwise

from ppwork.protocol.topology import LEADER_RANK, Role, Topology
from ppwork.records.spans import DEVICE_LANE, STREAM, Span
from ppwork.timeline.chunks import EntriesByRank, emissions, lanes_of, on_streams

EDGES = {
    Role.STAGE0: (("encode", "send"), ("receive", "decode")),
    Role.LEADER: (("receive", "broadcast"), ("broadcast", "generate"), ("generate", "send_result")),
    Role.FOLLOWER: (("receive", "generate"),),
}
"""The waits of one stream for another that carry a chunk: SEND, RELAY and TAKE of ``runtime.cuda_links``.

The others, REFILL and REUSE, carry no chunk: they keep a slot until its last message is gone."""


@dataclass(frozen=True)
class Transfer:
    """One rank's half of a transfer, on the stream of its link."""

    rank: int
    span: Span
    moves_ns: int
    """Moment in the span from which it can have moved: all ranks had begun. Its end, if one never did."""

    @property
    def waits_ms(self) -> float:
        """Least milliseconds that it waited for its peers."""
        return (self.moves_ns - self.span.start_ns) / 1e6


@dataclass(frozen=True)
class Edge:
    """A wait of one stream for another, on one rank: from the end of one span to the start of the next."""

    rank: int
    before: Span
    after: Span


@dataclass(frozen=True)
class Stream:
    """The work of one stream over a run; medians are per span, in milliseconds."""

    rank: int
    lane: str
    spans: int
    busy: float
    """Largest possible share of the time between first and last emission in which it computed or moved."""
    busy_ms: float
    """Median of a kernel, or of the moving part of a transfer."""
    waits_ms: float
    """Median of the waiting part of a transfer; 0 for kernels."""


def transfers(entries_by_rank: EntriesByRank) -> list[Transfer]:
    """Return every rank's halves of the transfers between streams.

    Args:
        entries_by_rank: Entries of all ranks, on one clock (``chunks.aligned``).
    """
    topology = Topology(max(entries_by_rank, default=1))
    halves: dict[tuple[str, int], dict[int, Span]] = {}
    for rank, entries in entries_by_rank.items():
        for span in on_streams(entries):
            if span.lane != DEVICE_LANE:
                halves.setdefault((span.lane, span.call_id), {})[rank] = span
    found = []
    for (lane, _), spans in halves.items():
        began_ns = max(span.start_ns for span in spans.values())
        whole = spans.keys() == set(topology.ranks(lane.removeprefix(STREAM)))
        for rank, span in spans.items():
            found.append(Transfer(rank, span, min(began_ns, span.end_ns) if whole else span.end_ns))
    return found


def edges(entries_by_rank: EntriesByRank) -> list[Edge]:
    """Return the waits between the streams of each rank that carried a chunk."""
    topology = Topology(max(entries_by_rank, default=1))
    found = []
    for rank, entries in entries_by_rank.items():
        spans = {(span.chunk_index, span.name): span for span in on_streams(entries)}
        for chunk in sorted({chunk for chunk, _ in spans}):
            for before, after in EDGES[topology.role(rank)]:
                if (chunk, before) in spans and (chunk, after) in spans:
                    found.append(Edge(rank, spans[chunk, before], spans[chunk, after]))
    return found


def hidden(entries_by_rank: EntriesByRank) -> dict[int, bool]:
    """Say of each chunk but the first whether all its transfers to the mesh were hidden (see the module).

    Args:
        entries_by_rank: Has the leader's entries; only its clock is used.
    """
    spans = {(span.chunk_index, span.name): span for span in on_streams(entries_by_rank.get(LEADER_RANK, ()))}
    computed = sorted(chunk for chunk, name in spans if name == "generate")
    arrived = {
        chunk: span.end_ns for (chunk, name), span in spans.items() if name in ("receive", "broadcast")
    }
    return {
        then: arrived[then] <= spans[first, "generate"].end_ns
        for first, then in pairwise(computed)
        if then in arrived
    }


def streams(entries_by_rank: EntriesByRank) -> list[Stream]:
    """Return the streams of a run, by rank and in the order of a chunk's life; none without a GPU.

    Args:
        entries_by_rank: Entries of all ranks, on one clock.
    """
    emits = list(emissions(entries_by_rank).values())
    start, end = (emits[0], emits[-1]) if len(emits) > 1 else (0, 0)
    moves = {(transfer.rank, transfer.span): transfer.moves_ns for transfer in transfers(entries_by_rank)}
    found = []
    for rank, lane in lanes_of(entries_by_rank):
        if not lane.startswith(STREAM):
            continue
        spans = [span for span in on_streams(entries_by_rank[rank]) if span.lane == lane]
        began = [moves.get((rank, span), span.start_ns) for span in spans]
        times = list(zip(spans, began, strict=True))
        busy_ns = sum(max(0, min(span.end_ns, end) - max(at, start)) for span, at in times)
        found.append(
            Stream(
                rank,
                lane,
                len(spans),
                busy_ns / max(end - start, 1),
                statistics.median((span.end_ns - at) / 1e6 for span, at in times),
                statistics.median((at - span.start_ns) / 1e6 for span, at in times),
            )
        )
    return found
