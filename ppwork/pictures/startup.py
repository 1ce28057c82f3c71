"""The picture of a run's start: a row for the launcher, torchrun and each rank, seconds from the launch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.errors import duration, listed
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table
from ppwork.records.run import Run, as_run
from ppwork.timeline.startup import CHUNKS, STEPS, StartupStep
from ppwork.timeline.startup import startup as steps_of

if TYPE_CHECKING:
    import os

    from matplotlib.figure import Figure

WIDTH, MARGINS, ROW = 12.0, (1.4, 0.35, 0.3, 1.05), 0.45
"""Of the figure, as ``style.stacked`` takes them, and of a row, in inches."""
RANK0 = "rank 0"


def startup(run: Run | os.PathLike[str] | str) -> Picture:
    """Return where the seconds between the launch of a run and its first chunk went, and those at its end.

    Args:
        run: A run of one host, or its folder.

    Raises:
        PlanError: It is no run of a plan, or its launcher has left no times.
    """
    steps = steps_of(as_run(run))
    rows = list(dict.fromkeys(step.row for step in steps))
    cells = [[row, *(_cell(steps, row, name) for name in STEPS)] for row in rows]
    table = Table(["", *STEPS], cells, above="seconds; a dash: not a step of this process")
    return Picture(_finding(steps), lambda: _draw(steps, rows), table)


def _cell(steps: list[StartupStep], row: str, name: str) -> str:
    return next((f"{step.ms / 1e3:.2f}" for step in steps if (step.row, step.name) == (row, name)), "-")


def _finding(steps: list[StartupStep]) -> str:
    chunks = next((step for step in steps if step.row == RANK0 and step.name == CHUNKS), None)
    if chunks is None:
        return "The run did not come to a chunk on rank 0."
    before = [step for step in steps if step.end_ms <= chunks.start_ms + 1 and not _of_others(step)]
    longest = sorted(before, key=lambda step: -step.ms)[:3]
    each = listed(f"{step.name} {duration(step.ms / 1e3)}" for step in longest)
    whole = max(step.end_ms for step in steps)
    return (
        f"Rank 0 began its first chunk {duration(chunks.start_ms / 1e3)} after the launch; the longest steps "
        f"before it: {each}. Its chunks took {duration(chunks.ms / 1e3)} of {duration(whole / 1e3)}."
    )


def _of_others(step: StartupStep) -> bool:
    return step.row.startswith("rank ") and step.row != RANK0


def _draw(steps: list[StartupStep], rows: list[str]) -> Figure:
    paper, (axes,) = style.stacked([ROW * len(rows)], WIDTH, MARGINS)
    longest = max(step.end_ms for step in steps) / 1e3
    inch = longest / (WIDTH - MARGINS[0] - MARGINS[1])
    for step in steps:
        row, look = rows.index(step.row), _look(step.name)
        style.bar(axes, step.start_ms / 1e3, step.end_ms / 1e3, row, style.TALL, **look)
        if len(step.name) * style.CHAR * inch < step.ms / 1e3 - 0.16 * inch:
            middle = (step.start_ms + step.end_ms) / 2e3
            axes.text(middle, row, step.name, fontsize=11, bbox=style.white_box(0.1), **style.CENTRED)
    axes.set_xlim(0, longest)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), rows, fontsize=11)
    axes.set_xlabel("seconds from the launch")
    style.open_frame(axes)
    shown = [name for name in STEPS if any(step.name == name for step in steps)]
    keys = [style.patch_key(name, **_look(name)) for name in shown]
    style.legend_below(paper, keys, ncols=len(keys), fontsize=9.5, columnspacing=1.1, handletextpad=0.4)
    return paper


def _look(name: str) -> style.Style:
    if name == CHUNKS:
        return {"facecolor": style.PALE, "edgecolor": "black", "linewidth": 0.8}
    return style.solid(STEPS.index(name))
