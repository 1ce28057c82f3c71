"""A run on the terminal: a bar while it goes, a table of a few lines when it has ended."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ppwork.launcher.launch import launch
from ppwork.launcher.nodes.places import Places
from ppwork.pictures.tables import Table
from ppwork.plan import Plan
from ppwork.records.run import Run, rows_of
from ppwork.records.spans import FIGURES, Entry, Instant

if TYPE_CHECKING:
    from rich.console import Console

MOST_METRICS = 3
"""As many fit beside the bar."""


def launch_with_bar(
    plan: Plan, out_dir: Path | None, console: Console, limit_s: float, on: Places | None = None
) -> Run:
    """Launch a plan and show chunk, period and the stage's metrics while it runs; raises as ``launch``."""
    before = (TextColumn("{task.description}"), BarColumn(bar_width=24))
    after = (MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("{task.fields[figures]}"))
    progress = Progress(*before, *after, console=console)
    task = progress.add_task("starting ranks", total=None, figures="")
    last_ns = 0

    def begin(resolved: Plan, _: Path) -> None:
        progress.update(task, total=resolved.chunks)
        shown.enter_context(progress)  # not before: bad input gets its one message and no bar

    def show(entry: Entry) -> None:
        nonlocal last_ns
        if not isinstance(entry, Instant) or entry.name != "emit":
            return
        period = f"last period {(entry.at_ns - last_ns) / 1e6:.0f} ms" if last_ns else ""
        last_ns = entry.at_ns
        metrics = [f"{name} {value:.4g}" for name, value in entry.figures.items() if name not in FIGURES]
        figures = "  ".join([period, *metrics[:MOST_METRICS]])
        number = entry.chunk_index + 1
        doing = "verifying" if plan.verify and number == progress.tasks[0].total else "chunks"
        progress.update(task, completed=number, description=doing, figures=figures)

    with contextlib.ExitStack() as shown:
        return launch(plan, out=out_dir, started=begin, progress=show, limit_s=limit_s, on=on)


def table(finished: Run) -> Table:
    """Return the few lines that a run ends with."""
    return Table((), rows_of(finished))
