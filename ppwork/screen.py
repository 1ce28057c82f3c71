"""A run on the terminal: a bar while it goes, a table of a few lines when it has ended."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from ppwork.launch import launch
from ppwork.timeline import Entry, Instant

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import Console

    from ppwork.plan import Plan
    from ppwork.run import Run


def launch_with_bar(plan: Plan, out_dir: Path | None, console: Console) -> Run:
    """Launch a plan and show chunk, period and PSNR while it runs; raises as ``launch``."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[figures]}"),
    )
    progress = Progress(*columns, console=console)
    task = progress.add_task("starting ranks", total=None, figures="")
    last_ns = 0

    def begin(resolved: Plan, _: Path) -> None:
        progress.update(task, total=resolved.chunks)
        shown.enter_context(progress)  # not before: bad input gets its one message and no bar

    def show(entry: Entry) -> None:
        nonlocal last_ns
        if not isinstance(entry, Instant) or entry.name != "emit":
            return
        period = f"period {(entry.at_ns - last_ns) / 1e6:.0f} ms" if last_ns else ""
        last_ns = entry.at_ns
        quality = entry.figures.get("psnr_denoised_db")
        figures = period + (f"  PSNR {quality:.1f} dB" if quality is not None else "")
        checking = plan.verify and entry.chunk_index + 1 == progress.tasks[0].total
        progress.update(
            task,
            completed=entry.chunk_index + 1,
            description="verifying" if checking else "chunks",
            figures=figures,
        )

    with contextlib.ExitStack() as shown:
        return launch(plan, out=out_dir, started=begin, progress=show)


def table(finished: Run) -> Table:
    """Return the few lines that a run ends with."""
    summary, plan = finished.summary, finished.plan
    view = Table(show_header=False, box=None, pad_edge=False)
    view.add_column(style="bold")
    view.add_column()
    for name, text in _rows(summary, plan, finished.run_dir):
        view.add_row(name, text)
    return view


def depth_of(plan: Plan) -> str:
    """Return the depth of a plan in words, with its parts and its order where they are not the usual ones."""
    split = f" (d_in {plan.d_in}, d_out {plan.d_out})" if plan.d_in else ""
    order = "" if plan.order == "overlap" else f", {plan.order}"
    return f"depth {plan.in_flight_depth}{split}{order}"


def _rows(summary: dict[str, Any], plan: Plan, run_dir: Path) -> list[tuple[str, str]]:
    versions = summary.get("versions", {})
    rows = [
        ("ranks", f"{plan.world_size} (stage 0 + mesh of {plan.mesh_size}), {summary.get('backend')}"),
        ("chunks", f"{summary.get('chunks')}, {depth_of(plan)}"),
    ]
    if "psnr_denoised_db" in summary:
        noisy, clean = summary["psnr_noisy_db"], summary["psnr_denoised_db"]
        rows.append(("PSNR", f"noisy {noisy:.2f} dB, denoised {clean:.2f} dB ({clean - noisy:+.2f} dB)"))
    if summary.get("period_ms") is not None:
        rows.append(
            (
                "period",
                f"{summary['period_ms']:.1f} ms (stage 0 {summary['stage0_ms']:.1f} ms, "
                f"stage 1 {summary['stage1_ms']:.1f} ms)",
            )
        )
    if plan.flushes:
        dropped = ", ".join(map(str, summary.get("dropped_chunks", ())))
        said = f"dropped {dropped}" if dropped else "nothing was in flight, nothing dropped"
        rows.append(("flushed", f"at chunk {', '.join(map(str, sorted(plan.flushes)))}: {said}"))
    if summary.get("overlap_score") is not None and plan.in_flight_depth > 1:
        idle = summary.get("mesh_idle_ms")
        rows.append(
            (
                "overlap",
                f"score {summary['overlap_score']:.2f}, efficiency {summary['efficiency']:.2f}"
                + (f", mesh idle {idle:.1f} ms" if idle is not None else ""),
            )
        )
    if "max_abs_diff" in summary:
        rows.append(("verified", f"max_abs_diff {summary['max_abs_diff']:g} to one process"))
    rows.append(("versions", f"ppwork {versions.get('ppwork')}, torch {versions.get('torch')}"))
    rows.append(("folder", str(run_dir)))
    return rows
