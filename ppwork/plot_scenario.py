"""A scenario as a picture: the three bounds of the law against the period, and who works when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppwork.lives import TRANSFERS, WORK
from ppwork.plot import LETTERS, chunk_style
from ppwork.scenario import STEADY
from ppwork.timeline import Span
from ppwork.topology import LEADER_RANK, STAGE0_RANK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ppwork.scenario import Played

PERIODS = 3.0
"""The lower part shows that many times what the upper part can."""
ROWS = {(STAGE0_RANK, WORK): 0.0, (STAGE0_RANK, TRANSFERS): 1.0, (LEADER_RANK, TRANSFERS): 1.0}
ROWS |= {(LEADER_RANK, WORK): 2.0}
LABELS = ("rank 0: e encode,\nd decode", "on the way", "rank 1: generate")
MARGINS = {"left": 0.19, "right": 0.985, "top": 0.93, "bottom": 0.125, "hspace": 0.3}
"""Fixed: a layout that is computed would take as long as the drawing."""
HOLDS: dict[str, Any] = {"color": "#E69F00", "hatch": "//"}
NUMBER_BOX: dict[str, Any] = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
BAR: dict[str, Any] = {"edgecolor": "black", "linewidth": 0.8}


def plot_scenario(played: Played, *, reach_ms: float = 0.0) -> Figure:
    """Draw a scenario.

    Args:
        played: What came of it.
        reach_ms: Draw both time axes for bounds up to this, so that pictures can be compared; a longer
            period or bound makes them longer.
    """
    from matplotlib.figure import Figure

    reach = 1.15 * max(reach_ms, played.period_ms, *played.scenario.bounds_ms.values(), 1.0)
    figure = Figure(figsize=(10.0, 4.6), facecolor="white")
    above, below = figure.subplots(2, 1, height_ratios=(1.0, 1.15), gridspec_kw=MARGINS)
    _bounds(above, played, reach)
    _stages(below, played, PERIODS * reach)
    for axes in (above, below):
        axes.invert_yaxis()
        axes.tick_params(axis="both", labelsize=11)
        axes.tick_params(axis="y", length=0)
        axes.spines[["top", "right", "left"]].set_visible(False)
    return figure


def _bounds(axes: Axes, played: Played, reach_ms: float) -> None:
    bounds, period = played.scenario.bounds_ms, played.period_ms
    for place, (name, ms) in enumerate(bounds.items()):
        style = HOLDS if name in played.binding else {"color": "#DDDDDD"}
        axes.barh(place, ms, 0.7, **style, **BAR, gid=f"bound.{name}")
        axes.text(reach_ms / 100, place, f"{ms:.1f}", va="center", fontsize=11, bbox=NUMBER_BOX)
    axes.axvline(period, color="black", linewidth=2.5, linestyle="--")
    axes.set_title(f"dashed: the period, {period:.1f} ms", loc="right", fontsize=12)
    title = "hatched: the bound that holds" if played.binding else "no bound of the law holds"
    axes.set_title(f"bounds of the law, ms; {title}", loc="left", fontsize=12)
    axes.set_yticks(range(len(bounds)), [name.replace(" + transport", "\n+ transport") for name in bounds])
    axes.set_xlim(0, reach_ms)


def _stages(axes: Axes, played: Played, length_ms: float) -> None:
    entries = played.simulation.entries_by_rank
    steady = (e for e in entries[LEADER_RANK] if e.name == "generate" and e.chunk_index == STEADY)
    start_ns = next(e.start_ns for e in steady if isinstance(e, Span))
    for (rank, names), row in ROWS.items():
        for span in entries[rank]:
            if isinstance(span, Span) and span.name in names:
                _span(axes, span, row, (span.start_ns - start_ns) / 1e6, length_ms)
    axes.set_yticks(range(len(LABELS)), LABELS)
    axes.set_ylim(-0.5, len(LABELS) - 0.5)
    axes.set_xlim(0, length_ms)
    axes.set_xlabel(f"ms from the start of chunk {STEADY} on the mesh; numbers are chunks", fontsize=11)


def _span(axes: Axes, span: Span, row: float, left_ms: float, length_ms: float) -> None:
    from matplotlib.patches import Rectangle

    if left_ms + span.ms <= 0 or left_ms >= length_ms:
        return
    colour, hatch = chunk_style(span.chunk_index)
    height = 0.8 if span.name in WORK else 0.35
    box = Rectangle((left_ms, row - height / 2), span.ms, height, facecolor=colour, hatch=hatch, **BAR)
    axes.add_patch(box)
    shown = min(left_ms + span.ms, length_ms) - max(left_ms, 0.0)
    if span.name in WORK and shown > length_ms / 40:
        middle = max(left_ms, 0.0) + shown / 2
        said = f"{LETTERS.get(span.name, '')}{span.chunk_index}"
        axes.text(middle, row, said, ha="center", va="center", fontsize=10, bbox=NUMBER_BOX)
