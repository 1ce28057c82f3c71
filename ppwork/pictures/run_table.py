"""The table that a run ends with: its figures in a few named lines, on a terminal and in a notebook.

What a run did not measure has no line. Its folder may come from anybody: what does not read has none.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping

import msgspec

from ppwork.errors import named_chunks
from ppwork.pictures.tables import Table
from ppwork.plan import Plan
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.notes import (
    odd_results,
    told_of_emissions,
    told_of_metadata,
    told_of_options,
    told_of_results,
    told_of_writes,
    useless_cuts,
    why_not_reset,
)
from ppwork.records.run import METADATA_DIFFERS, STREAM_ENDED, WRITES_DIFFER, Run
from ppwork.records.threads import dead_threads

VARIES = 2.0
"""A run has a line about its periods if their ninetieth percentile is more than this times their median."""
PAUSE_SHARE = 0.25
"""A source that has no chunk for more than this share of a period is what the run waits for."""
LONGEST = 60
"""Characters of a figure that the table shows; the summary has all of them."""


def table_of(finished: Run) -> Table:
    """Return the table, a line for each thing that the run has measured."""
    return Table((), rows_of(finished))


def rows_of(finished: Run) -> list[tuple[str, str]]:
    """Return name and text of each line; there is none for what the run did not measure."""
    summary, plan = finished.summary, finished.plan
    figures, versions = _numbers(summary), _mapping(summary.get("versions"))
    rows = [
        *_warnings(finished),  # above all figures: those may be wrong
        ("ranks", f"{plan.world_size} (stage 0 + mesh of {plan.mesh_size}), {_transport_of(finished)}"),
        ("chunks", f"{summary.get('chunks')}{_fewer(finished)}, {_depth_of(plan)}"),
    ]
    own = {name: _mapping(summary.get(name)) for name in ("figures", "metrics")}
    if plan.is_video:
        psnr = _numbers(own["figures"])
        noisy, clean = psnr.get("psnr_noisy_db"), psnr.get("psnr_denoised_db")
        if noisy is not None and clean is not None:
            rows.append(("PSNR", f"noisy {noisy:.2f} dB, denoised {clean:.2f} dB ({clean - noisy:+.2f} dB)"))
    else:
        rows += [(name, _in_words(each)) for name, each in own.items() if each]
    if {"period_ms", "stage0_ms", "stage1_ms"} <= figures.keys():
        stage0, stage1 = f"stage 0 {figures['stage0_ms']:.1f} ms", f"stage 1 {figures['stage1_ms']:.1f} ms"
        first, last = map(figures.get, ("from_chunk", "to_chunk"))
        over = "" if first is None or last is None else f"over chunks {first:.0f} to {last:.0f}, "
        rows.append(("period", f"{figures['period_ms']:.1f} ms ({over}{stage0}, {stage1})"))
        half, most = map(figures.get, ("period_p50_ms", "period_p90_ms"))
        if half is not None and most is not None and most > VARIES * half:
            text = f"half came within {half:.1f} ms of the one before, nine in ten within {most:.1f} ms"
            rows.append(("varies", text))
    source_ms, period_ms = figures.get("source_ms", 0.0), figures.get("period_ms", math.inf)
    if source_ms > PAUSE_SHARE * period_ms > 0:
        share = min(1.0, source_ms / period_ms)
        rows.append(("source", f"had no chunk for {share:.0%} of the time: it sets the period"))
    chunks = summary.get("dropped_chunks")
    dropped = ", ".join(map(str, chunks)) if isinstance(chunks, list) else ""
    if plan.flushes:
        text = f"dropped {dropped}" if dropped else "nothing was in flight, nothing dropped"
        rows.append(("flushed", f"at chunk {', '.join(map(str, sorted(plan.flushes)))}: {text}"))
    elif dropped:  # the source flushed: where, the timeline shows
        rows.append(("flushed", f"dropped {dropped}"))
    if "period_ms" in figures and plan.in_flight_depth > 1:
        score, efficiency, idle_ms = map(figures.get, ("overlap_score", "efficiency", "mesh_idle_ms"))
        texts = [
            "a stage is too short for a score"
            if score is None
            else f"score {score:.2f} (hidden of the shorter stage)"
        ]
        texts += [] if efficiency is None else [f"efficiency {efficiency:.2f} (longer stage of the period)"]
        texts += [] if idle_ms is None else [f"mesh idle {idle_ms:.1f} ms"]
        rows.append(("overlap", ", ".join(texts)))
    if "max_abs_diff" in figures:
        rows.append(("verified", f"max_abs_diff {figures['max_abs_diff']:g} to one process"))
    elif plan.stage1 and not (plan.is_video or plan.is_synthetic) and plan.mesh_size > 1:
        # A wrong share of the weights and a state that was not reset end well.
        rows.append(("verified", "no: `verify` compares the numbers of a mesh with those of one process"))
    rows.append(("versions", f"ppwork {versions.get('ppwork')}, torch {versions.get('torch')}"))
    rows.append(("folder", str(finished.run_dir)))
    return rows


def _depth_of(plan: Plan) -> str:
    """Return the depth of a plan in words, with its parts and its schedule where they are unusual."""
    split = f" (d_in {plan.d_in}, d_out {plan.d_out})" if plan.d_in else ""
    schedule = "" if plan.schedule == "overlap" else f", {plan.schedule}"
    return f"depth {plan.in_flight_depth}{split}{schedule}"


def _transport_of(finished: Run) -> str:
    """Return in words what the messages of a run went over."""
    if not finished.plan.one_process:
        return str(finished.summary.get("backend"))
    on_gpu = finished.summary.get("device") == "cuda"
    return f"one process, copies on {'the GPU' if on_gpu else 'the CPU: no streams'}"


def _in_words(figures: Mapping[str, object]) -> str:
    """Return figures of a stage in one line: ``words 3, rate 0.5123``."""
    texts = {
        name: f"{figure:.4g}"
        if isinstance(figure, float)
        else figure
        if isinstance(figure, str)
        else msgspec.json.encode(figure).decode()
        for name, figure in figures.items()
    }
    return ", ".join(
        f"{name} {text if len(text) <= LONGEST else f'{text[:LONGEST]}...'}" for name, text in texts.items()
    )


def _mapping(value: object) -> Mapping[str, object]:
    """Return a part of a summary: a folder may come from anybody, and have anything in its place."""
    return value if isinstance(value, dict) else {}


def _numbers(values: Mapping[str, object]) -> dict[str, float]:
    """Return the numbers among the values; JSON may have an integer that is larger than any float."""
    numbers = {}
    for name, value in values.items():
        if isinstance(value, int | float):
            with contextlib.suppress(OverflowError):
                numbers[name] = float(value)
    return numbers


def _fewer(finished: Run) -> str:
    """Say how many chunks were planned if the source ended early, as a forgotten `return` makes it."""
    planned = finished.plan.chunks
    if planned is None or finished.exit_code != 0:
        return ""
    came = [entry.chunk_index for entry in finished.entries(STAGE0_RANK) if entry.name in ("emit", "drop")]
    return f" of {planned} (encode returned None)" if came and max(came) < planned - 1 else ""


def _warnings(finished: Run) -> list[tuple[str, str]]:
    """Return name and text of each line about something odd that does not fail the run."""
    rows, summary = [], finished.summary
    if isinstance(asked := summary.get(STREAM_ENDED), str):
        rows.append(("ended", asked))
    if silent := told_of_emissions(finished.entries(STAGE0_RANK)):
        rows.append(("outputs", silent))
    if odd := odd_results(summary):
        told = told_of_results(finished.entries_by_rank) or "see the mesh ranks' logs"
        rows.append(
            ("results", f"of {named_chunks(odd)} differed on the mesh; the leader's were sent; {told}")
        )
    if cuts := useless_cuts(summary):
        why = why_not_reset(of_loop=not finished.plan.stage1)
        rows.append(("cuts", f"at {named_chunks(cuts)} {why}"))
    if WRITES_DIFFER in summary:
        rows.append(("writes", told_of_writes(finished.entries_by_rank)))
    if METADATA_DIFFERS in summary:
        rows.append(("metadata", told_of_metadata(finished.entries_by_rank)))
    if idle := told_of_options(finished.plan.options, finished.entries_by_rank):
        rows.append(("options", idle))
    for rank in range(finished.plan.world_size):
        rows += [("lost", f"on rank {rank} {thread}") for thread in dead_threads(finished.run_dir, rank)]
    return rows
