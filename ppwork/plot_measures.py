"""Pictures of numbers: a measure against depth, or a time for each chunk, as bars by colour and hatch."""

from __future__ import annotations

import statistics
from typing import TYPE_CHECKING, Any

from ppwork.errors import PlanError, listed
from ppwork.plot import chunk_style

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Series = dict[str, dict[int, float]]
"""Bars by name, each a number by depth or chunk."""
NUMBER_BOX = {"boxstyle": "round,pad=0.2", "facecolor": "white", "edgecolor": "none"}
"""Numbers stand at the foot of their bars, clear of the hatches and of the law's line."""
STANDS_OUT = 1.5
"""A chunk that took longer than so many medians."""
MEASURES = {"overlap_score": "overlap score", "efficiency": "efficiency"}


def plot_depths(summaries: Mapping[int, Mapping[str, Any]], law: Mapping[int, float] | None = None) -> Figure:
    """Draw overlap score and efficiency against ``in_flight_depth``.

    Args:
        summaries: The summary of one run per depth.
        law: The efficiency that the law of the period allows, by depth; drawn as a line over the bars.

    Raises:
        PlanError: There is no run, or one was too short to be measured.
    """
    series: Series = {
        title: {depth: _known(summary[key], depth) for depth, summary in sorted(summaries.items())}
        for key, title in MEASURES.items()
    }
    figure, axes = _bars(series)
    axes.set_xlabel("in_flight_depth", fontsize=12)
    axes.set_ylabel("1 is all that is possible", fontsize=12)
    axes.set_ylim(0, 1.2)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
    if law is not None:
        left = [float(place) for place in range(len(summaries))]
        right = [place + 0.4 for place in left]
        heights = [law[depth] for depth in sorted(summaries)]
        axes.hlines(heights, left, right, colors="black", linewidth=2.5, label="efficiency by the law")
    _legend(figure, axes)
    return figure


def depths_finding(summaries: Mapping[int, Mapping[str, Any]]) -> str:
    """State in one sentence what ``plot_depths`` shows."""
    scores = [f"{summary['overlap_score']:.2f}" for _, summary in sorted(summaries.items())]
    shares = [f"{summary['efficiency']:.2f}" for _, summary in sorted(summaries.items())]
    return (
        f"At depth {listed(sorted(summaries))} the overlap score is {listed(scores)}, and the efficiency "
        f"is {listed(shares)}."
    )


def plot_chunks(series: Mapping[str, Mapping[int, float]], *, what: str) -> Figure:
    """Draw a time for each chunk of one or more runs.

    Args:
        series: Milliseconds by chunk index, by the name of the run.
        what: Which time it is.

    Raises:
        PlanError: There is nothing to draw.
    """
    figure, axes = _bars({name: dict(values) for name, values in series.items()}, numbers=False)
    axes.set_xlabel("chunk", fontsize=12)
    axes.set_ylabel(f"{what}, ms", fontsize=12)
    _legend(figure, axes)
    return figure


def chunks_finding(series: Mapping[str, Mapping[int, float]]) -> str:
    """State in one sentence which chunk of each run took longest, in medians of it, if one stands out."""
    said = []
    for name, values in series.items():
        worst = max(values, key=lambda k: values[k])
        times = values[worst] / statistics.median(values.values())
        found = (
            f"chunk {worst} took longest," if times > STANDS_OUT else "no chunk stands out, the longest took"
        )
        said.append(f"{name}: {found} {times:.1f} times the median")
    return "; ".join(said) + "."


def _bars(series: Series, *, numbers: bool = True) -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    if not series or not all(series.values()):
        raise PlanError("There is nothing to draw.", check_first="did the runs finish?")
    keys = sorted({key for values in series.values() for key in values})
    figure = Figure(figsize=(8.0, 4.2), facecolor="white", layout="constrained")
    axes = figure.subplots()
    width = 0.8 / len(series)
    for place, (name, values) in enumerate(series.items()):
        colour, hatch = chunk_style(place)
        at = [keys.index(key) - 0.4 + width * (place + 0.5) for key in values]
        style: dict[str, Any] = {
            "color": colour,
            "hatch": hatch,
            "edgecolor": "black",
            "linewidth": 0.8,
            "label": name,
        }
        axes.bar(at, list(values.values()), width, **style)
        if numbers:
            for x, value in zip(at, values.values(), strict=True):
                axes.text(x, 0.07, f"{value:.2f}", ha="center", va="center", fontsize=12, bbox=NUMBER_BOX)
    axes.set_xticks(range(len(keys)), [str(key) for key in keys], fontsize=12)
    axes.tick_params(axis="y", labelsize=11)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _legend(figure: Figure, axes: Axes) -> None:
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False, fontsize=11)


def _known(value: float | None, depth: int) -> float:
    if value is None:
        raise PlanError(
            f"The run at depth {depth} has no measures.", check_first="has it two chunks or more?"
        )
    return value
