"""One picture of a sweep: a panel for each run of the notebook, a bar for each point of the grid."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING

from ppwork.errors import PlanError
from ppwork.lab.sweep.table import SweepTable, as_table
from ppwork.pictures import style
from ppwork.pictures.picture import Picture

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_PANELS = 12
"""Of a notebook that launches more often, the first ones are drawn; the table has them all."""
COLUMNS, WIDTH, HEIGHT = 2, 4.6, 3.1
"""Panels in a row, and the size of each in inches; one alone has the whole row."""
MOST_NUMBERS = 8
"""Bars of a panel that still have room for their numbers."""

ByRun = dict[int, dict[int, float]]
"""A measure by run and point."""


def sweep_picture(table: SweepTable, measure: str = "period_ms") -> Picture:
    """Return a measure of every run at every point; panels have scales of their own, all from 0.

    The first axis of the grid runs to the right, combinations of the others are bars side by side.

    Raises:
        PlanError: No run of any point has this measure.
    """
    by_run = {run: values for run in table.run_numbers if (values := table.values_of(run, measure))}
    if not by_run:
        raise PlanError(
            f"No run of the sweep has {measure}; there is nothing to draw.",
            check_first="did any point end well? a run of one chunk has no period",
        )
    return Picture(
        _finding(table, by_run, measure), lambda: _draw(table, by_run, measure), as_table(table, measure)
    )


def _finding(table: SweepTable, by_run: ByRun, measure: str) -> str:
    names = {point.number: point.text for point in table.points}
    measured = {point for values in by_run.values() for point in values}
    runs = f"{len(by_run)} {'runs' if len(by_run) > 1 else 'run'}"
    of = f"{len(measured)} of {len(names)} points of {' and '.join(table.axes)}"
    text = f"{measure} at {of}, for {runs} of {table.title}."
    run, values = max(by_run.items(), key=lambda item: max(item[1].values()) - min(item[1].values()))
    low, high = min(values, key=values.__getitem__), max(values, key=values.__getitem__)
    if len(values) > 1:
        ends = f"{values[low]:.4g} at {names[low]} to {values[high]:.4g} at {names[high]}"
        times = f", {values[high] / values[low]:.1f} times" if values[low] > 0 else ""
        text += f" It changes most in run {run} ({table.label(run)}): from {ends}{times}."
    if len(by_run) > MOST_PANELS:
        text += f" The first {MOST_PANELS} runs are drawn."
    if table.not_ok:
        text += f" Not ended well: {'; '.join(f'{p.text} {p.outcome.state}' for p in table.not_ok)}."
    return text


def _draw(table: SweepTable, by_run: ByRun, measure: str) -> Figure:
    rows = math.ceil(min(len(by_run), MOST_PANELS) / COLUMNS)
    paper = style.figure(WIDTH * COLUMNS, HEIGHT * rows + 1.0, layout="constrained")
    panels = paper.subplots(rows, min(COLUMNS, len(by_run)), squeeze=False).flatten()
    series = list(dict.fromkeys(point.series for point in table.points))
    for axes, (run, values) in zip(panels, by_run.items(), strict=False):
        _panel(axes, table, series, values)
        title = textwrap.wrap(f"run {run}: {table.label(run)}", 48, max_lines=3, placeholder=" ...")
        axes.set_title("\n".join(title), fontsize=10)
    for axes in panels[len(by_run) :]:
        axes.set_axis_off()
    scale = ", each on its own scale" if len(by_run) > 1 else ""
    paper.suptitle(f"{table.title}: {measure} of each run{scale}", fontsize=12)
    paper.supylabel(measure, fontsize=12)
    if len(series) > 1:
        keys = [style.patch_key(name, **style.solid(number)) for number, name in enumerate(series)]
        paper.legend(handles=keys, loc="outside lower center", ncols=4, frameon=False, fontsize=11)
    return paper


def _panel(axes: Axes, table: SweepTable, series: list[str], values: Mapping[int, float]) -> None:
    name, ticks = next(iter(table.axes.items()))
    width = 0.8 / len(series)
    for point in table.points:
        number, value = series.index(point.series), values.get(point.number)
        x = ticks.index(point.values[name]) - 0.4 + width * (number + 0.5)
        if value is None:
            axes.text(x, 0, "none", ha="center", va="bottom", fontsize=10, rotation=90)
            continue
        axes.bar(x, value, width, **style.solid(number))
        if len(table.points) <= MOST_NUMBERS:
            axes.text(x, value, f"{value:.3g}", ha="center", va="bottom", fontsize=10)
    axes.set_xticks(range(len(ticks)), [str(tick) for tick in ticks], fontsize=11)
    axes.set_xlabel(name, fontsize=11)
    axes.set_xlim(-0.5, len(ticks) - 0.5)
    highest = max(values.values())
    axes.set_ylim(min(0.0, *values.values()), 1.18 * highest if highest > 0 else 1.0)
    axes.tick_params(axis="y", labelsize=10)
    style.open_frame(axes, left=False)
