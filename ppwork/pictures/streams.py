"""The streams of a run on CUDA as a table: how busy each was, and how long its transfers waited and moved."""

from __future__ import annotations

from ppwork.pictures.tables import Table
from ppwork.timeline.chunks import EntriesByRank
from ppwork.timeline.streams import streams


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
