"""The measures of a run, computed from its entries; each formula is in this file only.

Each rank's clock is used alone: no measure needs two clocks to agree.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import msgspec

from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.spans import FIGURES, SOURCE_MS, STAGE1_MS, Entry, Instant
from ppwork.timeline.chunks import STAGE0_SPANS, chunk_durations, emissions, steps_of

FLOOR_MS = 1.0
"""A stage that takes less is not scored."""
FEWEST = 5
"""Fewest chunks for which percentiles are given."""


def stage1_ms_of(stage0_entries: Iterable[Entry]) -> dict[int, float]:
    """Return the generator time per chunk that the results brought back to rank 0, in milliseconds."""
    return {
        entry.chunk_index: entry.figures[STAGE1_MS]
        for entry in stage0_entries
        if isinstance(entry, Instant) and entry.name == "emit" and STAGE1_MS in entry.figures
    }


def metrics_of(stage0_entries: Iterable[Entry]) -> dict[str, float]:
    """Return the median of each metric in the stage's emissions, over the chunks that have it."""
    values: dict[str, list[float]] = {}
    for entry in stage0_entries:
        if isinstance(entry, Instant) and entry.name == "emit":
            for name, figure in entry.figures.items():
                if name not in FIGURES:
                    values.setdefault(name, []).append(figure)
    return {name: statistics.median(figures) for name, figures in values.items()}


def dropped_chunks(stage0_entries: Iterable[Entry]) -> list[int]:
    """Return the chunks whose results a flush made stale: received at rank 0 and dropped (rule R3)."""
    return sorted(e.chunk_index for e in stage0_entries if isinstance(e, Instant) and e.name == "drop")


def flushes(entries_by_rank: Mapping[int, Sequence[Entry]]) -> dict[int, int]:
    """Return the start of the encode of each chunk that came with a flush: its new epoch made others stale.

    A flush with nothing in flight is a cut like any other, and is left out.
    """
    stage0 = entries_by_rank.get(STAGE0_RANK, ())
    dropped = dropped_chunks(stage0)
    encodes = sorted(steps_of(stage0, "encode"), key=lambda span: span.call_id)
    return {
        then.chunk_index: then.start_ns
        for before, then in pairwise(encodes)
        if then.cache_epoch > before.cache_epoch and before.chunk_index in dropped
    }


def mesh_idle_ms(leader_entries: Iterable[Entry]) -> tuple[float, ...]:
    """Return, for each ``generate`` of the leader, its start minus the end of the one before, in ms."""
    return tuple(_idle_before(leader_entries).values())


def mean_mesh_idle_ms(leader_entries: Iterable[Entry], first: int | None, last: int | None) -> float | None:
    """Return the mean of ``mesh_idle_ms`` over the chunks of the period; ``None`` if there are none.

    Args:
        leader_entries: Entries of the leader, in any order.
        first: ``Measures.from_chunk``; ``None``: there is no period, and all chunks count.
        last: ``Measures.to_chunk``.
    """
    idle = _idle_before(leader_entries)
    if first is not None and last is not None:
        idle = {chunk: ms for chunk, ms in idle.items() if first <= chunk <= last} or idle
    return round(statistics.fmean(idle.values()), 3) if idle else None


def _idle_before(leader_entries: Iterable[Entry]) -> dict[int, float]:
    spans = sorted(steps_of(leader_entries, "generate"), key=lambda span: span.start_ns)
    return {b.chunk_index: (b.start_ns - a.end_ns) / 1e6 for a, b in pairwise(spans)}


class Measures(msgspec.Struct, frozen=True):
    """The measures of one run, means in milliseconds after warm-up; GLOSSARY.md explains the words.

    ``stage0 = A + C`` (encode, preflight; decode and emit), ``stage1 = B`` (generator),
    ``period = (emit_k - emit_(k-depth)) / depth``, ``hidden = max(0, stage0 + stage1 - period)``,
    ``overlap_score = hidden / min(stage0, stage1)``, ``efficiency = max(stage0, stage1) / period``; both are
    at most 1. Means, because they add up: if every fourth chunk takes six times as long, the median at depth
    1 is that of a short chunk, and at depth 4 that of a round with a long chunk in it. A stage under
    ``FLOOR_MS`` is as short as the gap that a scheduler puts between two chunks: if the shorter stage is
    below it there is no score, if the longer one is, no efficiency.

    Attributes:
        chunks: Chunks that were emitted.
        from_chunk: The first chunk of the figures below.
        to_chunk: Their last chunk.
        period_ms: Mean time between two emissions; its inverse is the throughput.
        period_p50_ms: Half of the emissions came within this time after the one before. ``None`` for fewer
            than ``FEWEST`` chunks, as is the next figure.
        period_p90_ms: Nine in ten emissions did.
        stage0_ms: Mean of rank 0's own work on a chunk.
        stage1_ms: Mean of the generator's work on a chunk.
        overlap_score: The part of the shorter stage that is hidden behind the longer one.
        efficiency: The longer stage, divided by the period.
        source_ms: Mean time for which a chunk's source said that it had none yet (``NOT_YET``).
    """

    chunks: int
    from_chunk: int | None = None
    to_chunk: int | None = None
    period_ms: float | None = None
    period_p50_ms: float | None = None
    period_p90_ms: float | None = None
    stage0_ms: float | None = None
    stage1_ms: float | None = None
    overlap_score: float | None = None
    efficiency: float | None = None
    source_ms: float = 0.0


def measure(
    stage0_entries: Sequence[Entry], stage1_ms: Mapping[int, float], *, depth: int = 1, warm_up: int = 1
) -> Measures:
    """Compute the measures from rank 0's entries and the stage-1 times in the results.

    A period is taken over whole rounds of ``depth`` chunks, because from depth 2 on the single periods of a
    steady pipeline need not be equal: two chunks may come close together and the next two again (20, 25, 20,
    25 ms), and only their sum repeats. So a run's mean does not depend on where the run was cut off.

    Args:
        stage0_entries: Entries of rank 0, in any order.
        stage1_ms: Generator time per chunk index, in milliseconds.
        depth: The run's ``in_flight_depth``; less if the run is shorter than a round.
        warm_up: Chunks left out at the start, if a round remains after them. The next and the last ``depth -
            1`` chunks, in which the pipeline fills and drains, are left out, too, if two rounds remain.
    """
    emits = emissions({STAGE0_RANK: stage0_entries})
    stage0_ms = chunk_durations(stage0_entries, *STAGE0_SPANS)
    whole = sorted(k for k in emits if k in stage0_ms and k in stage1_ms)
    lag = max(1, min(depth, len(whole) - 1))
    # Whole rounds only: if a flush dropped a chunk, the time between its neighbours is no period.
    rounds = [k for k in whole if all(k - back in emits for back in range(1, lag + 1))]
    if not rounds:
        return Measures(chunks=len(emits))
    warm, fill = whole[0] + warm_up - 1, lag - 1
    # While a pipeline fills or drains, rank 0 has less to do for a chunk.
    full = [k for k in rounds if k - lag >= warm + fill and k <= whole[-1] - fill]
    # Fewer than two such rounds say less about a run than all of it does.
    is_long = len(full) > lag
    steady = full if is_long else [k for k in rounds if k - lag >= warm] or rounds
    over = sorted({k - back for k in steady for back in range(lag)})
    if is_long:
        over = over[: len(over) // lag * lag]  # whole rounds
    single = sorted((emits[k] - emits[k - 1]) / 1e6 for k in over)
    period = statistics.fmean(single)
    stage0 = statistics.fmean(stage0_ms[k] for k in over if k in stage0_ms)
    stage1 = statistics.fmean(stage1_ms[k] for k in over if k in stage1_ms)
    shown = (entry for entry in stage0_entries if isinstance(entry, Instant) and entry.name == "emit")
    source_ms = {entry.chunk_index: entry.figures.get(SOURCE_MS, 0.0) for entry in shown}
    tells_shares = len(single) >= FEWEST
    return Measures(
        chunks=len(emits),
        from_chunk=over[0],
        to_chunk=over[-1],
        period_ms=round(period, 3),
        period_p50_ms=round(statistics.median(single), 3) if tells_shares else None,
        period_p90_ms=round(single[math.ceil(0.9 * len(single)) - 1], 3) if tells_shares else None,
        stage0_ms=round(stage0, 3),
        stage1_ms=round(stage1, 3),
        overlap_score=round(_hidden(stage0, stage1, period), 4) if min(stage0, stage1) >= FLOOR_MS else None,
        efficiency=round(min(1.0, max(stage0, stage1) / period), 4)
        if max(stage0, stage1) >= FLOOR_MS and period > 0
        else None,
        source_ms=round(statistics.fmean(source_ms[k] for k in over), 3),
    )


def score_text(score: float | None) -> str:
    """Return a score as text: ``0.97``, or why there is none."""
    return f"no measure of stages under {FLOOR_MS:g} ms" if score is None else f"{score:.2f}"


def _hidden(stage0_ms: float, stage1_ms: float, period_ms: float) -> float:
    """Return the part of the shorter stage that was hidden, at most all of it."""
    shorter = max(min(stage0_ms, stage1_ms), 1e-9)
    return min(max(0.0, stage0_ms + stage1_ms - period_ms), shorter) / shorter
