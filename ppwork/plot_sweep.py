"""One picture of a sweep: a panel for each run of the notebook, a bar for each point of the grid."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ppwork.errors import PlanError
from ppwork.plot import chunk_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ppwork.sweep_table import PointRow, SweepTable

MOST_PANELS = 12
"""Of a notebook that launches more often, the first ones are drawn; the table has them all."""
COLUMNS, PANEL = 3, (4.0, 3.0)
"""Panels in a row, and the size of one in inches."""
MOST_LINES = 3
"""Of a panel's title."""
MOST_NUMBERS = 8
"""Bars of a panel that still have room for their numbers."""


def plot_sweep(table: SweepTable, measure: str = "period_ms") -> Figure:
    """Draw a measure of every run at every point; panels have scales of their own, all from 0.

    The first axis of the grid runs to the right, combinations of the others are bars side by side.

    Raises:
        PlanError: No run of any point has this measure.
    """
    from matplotlib.figure import Figure

    shown = drawn(table, measure)[:MOST_PANELS]
    columns = 2 if len(shown) == 4 else min(COLUMNS, len(shown))
    rows = math.ceil(len(shown) / columns)
    size = (max(PANEL[0] * columns, 6.5), PANEL[1] * rows + 1.0)
    figure = Figure(figsize=size, facecolor="white", layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).flatten()
    for axes, run in zip(panels, shown, strict=False):
        _panel(axes, table, run, measure)
        axes.set_xlabel(next(iter(table.axes)), fontsize=11)
    for axes in panels[len(shown) :]:
        axes.set_axis_off()
    figure.supylabel(measure, fontsize=12)
    series = list(dict.fromkeys(_series(point) for point in table.points))
    title = f"{table.notebook.removesuffix('.ipynb')}: {measure} of each run"
    title += ", each on its own scale" if len(shown) > 1 else ""
    figure.suptitle(title, fontsize=12)
    if len(series) > 1:
        from matplotlib.patches import Patch

        keys = [
            Patch(facecolor=colour, hatch=hatch, edgecolor="black", label=name)
            for name, (colour, hatch) in ((name, chunk_style(place)) for place, name in enumerate(series))
        ]
        figure.legend(
            handles=keys, loc="outside lower center", ncols=min(4, len(keys)), frameon=False, fontsize=11
        )
    return figure


def sweep_finding(table: SweepTable, measure: str = "period_ms") -> str:
    """State in a few sentences what ``plot_sweep`` shows.

    Raises:
        PlanError: No run of any point has this measure.
    """
    shown = drawn(table, measure)
    points = {point.number: point for point in table.points}
    spreads = {}
    for run in shown:
        found = table.values_of(run, measure)
        low, high = min(found, key=lambda p: found[p]), max(found, key=lambda p: found[p])
        spreads[run] = (found[high] - found[low], low, high)
    most = max(shown, key=lambda run: spreads[run][0])
    _, low, high = spreads[most]
    values = table.values_of(most, measure)
    measured = {point for run in shown for point in table.values_of(run, measure)}
    said = (
        f"{measure} at {len(measured)} of {len(points)} points of {' and '.join(table.axes)}, "
        f"for {len(shown)} {'runs' if len(shown) > 1 else 'run'} of {table.notebook.removesuffix('.ipynb')}."
    )
    if len(values) > 1:
        said += (
            f" It changes most in run {most} ({table.label(most)}): from {values[low]:.4g} at "
            f"{_text(points[low])} to {values[high]:.4g} at {_text(points[high])}"
        )
        said += f", {values[high] / values[low]:.1f} times." if values[low] > 0 else "."
    if len(shown) > MOST_PANELS:
        said += f" The first {MOST_PANELS} runs are drawn."
    missing = table.not_ok
    if missing:
        said += f" Not ended well: {'; '.join(_text(p) + ' ' + p.outcome.state for p in missing)}."
    return said


def drawn(table: SweepTable, measure: str) -> list[int]:
    """Return the runs that have this measure at one point or more.

    Raises:
        PlanError: There is none.
    """
    shown = [run for run in table.run_numbers if table.values_of(run, measure)]
    if not shown:
        raise PlanError(
            f"No run of the sweep has {measure}; there is nothing to draw.",
            check_first="did any point end well? a run of one chunk has no period",
        )
    return shown


def _text(point: PointRow) -> str:
    return ", ".join(f"{name}={value}" for name, value in point.values.items())


def _series(point: PointRow) -> str:
    return ", ".join(f"{name} {value}" for name, value in list(point.values.items())[1:])


def _panel(axes: Axes, table: SweepTable, run: int, measure: str) -> None:
    found = table.values_of(run, measure)
    places = next(iter(table.axes.values()))
    series = list(dict.fromkeys(_series(point) for point in table.points))
    width = 0.8 / len(series)
    highest = max(found.values())
    for point in table.points:
        which = series.index(_series(point))
        x = places.index(next(iter(point.values.values()))) - 0.4 + width * (which + 0.5)
        colour, hatch = chunk_style(which)
        if point.number not in found:
            axes.text(x, 0, "none", ha="center", va="bottom", fontsize=10, rotation=90)
            continue
        value = found[point.number]
        axes.bar(x, value, width, color=colour, hatch=hatch, edgecolor="black", linewidth=0.8)
        if len(table.points) <= MOST_NUMBERS:
            axes.text(x, value, f"{value:.3g}", ha="center", va="bottom", fontsize=10)
    axes.set_xticks(range(len(places)), [str(place) for place in places], fontsize=11)
    axes.set_xlim(-0.5, len(places) - 0.5)
    axes.set_ylim(min(0.0, *found.values()), 1.18 * highest if highest > 0 else 1.0)
    axes.tick_params(axis="y", labelsize=10)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(_wrapped(f"run {run}: {table.label(run)}"), fontsize=10)


def _wrapped(text: str, width: int = 42) -> str:
    import textwrap

    return "\n".join(textwrap.wrap(text, width)[:MOST_LINES])
