"""A scenario as a picture: the three bounds of the law against the period, and who works when."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table
from ppwork.pictures.timelines import LETTERS
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK
from ppwork.records.spans import Span
from ppwork.timeline.chunks import TRANSFERS, WORK, spans_of
from ppwork.timeline.scenario import STEADY, Played, Scenario

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

PERIODS = 3.0
"""Length of the lower part's time axis, in lengths of the upper part's."""
ROWS = {
    (STAGE0_RANK, WORK): 0,
    (STAGE0_RANK, TRANSFERS): 1,
    (LEADER_RANK, TRANSFERS): 1,
    (LEADER_RANK, WORK): 2,
}
LABELS = ("rank 0: e encode,\nd decode", "on the way", "rank 1: generate")
MARGINS = {"left": 0.19, "right": 0.985, "top": 0.93, "bottom": 0.07, "hspace": 0.45}
"""Fixed: a layout that is computed would take as long as the drawing."""
HOLDS: style.Style = {"color": style.ORANGE, "hatch": "//"}


def scenario(of: Scenario | Played, *, reach_ms: float = 0.0) -> Picture:
    """Return a scenario as a picture.

    Args:
        of: A scenario, or one that was played.
        reach_ms: Milliseconds of a bound up to which both time axes are drawn, so that pictures can be
            compared; a longer period or bound makes them longer.
    """
    played = of.play() if isinstance(of, Scenario) else of
    table = Table((), list(played.numbers.items()))
    return Picture(played.finding, lambda: _draw(played, reach_ms), table)


def _draw(played: Played, reach_ms: float) -> Figure:
    reach = 1.15 * max(reach_ms, played.period_ms, *played.scenario.bounds_ms.values(), 1.0)
    paper = style.figure(10.0, 4.6)
    above, below = paper.subplots(2, 1, height_ratios=(1.0, 1.15), gridspec_kw=MARGINS)
    _bounds(above, played, reach)
    _stages(below, played, PERIODS * reach)
    for axes in (above, below):
        axes.invert_yaxis()
        axes.tick_params(axis="both", labelsize=11)
        style.open_frame(axes)
    return paper


def _bounds(axes: Axes, played: Played, reach_ms: float) -> None:
    bounds, period = played.scenario.bounds_ms, played.period_ms
    for row, (name, ms) in enumerate(bounds.items()):
        look = HOLDS if name in played.binding else {"color": style.PALE}
        axes.barh(row, ms, 0.7, edgecolor="black", linewidth=0.8, gid=f"bound.{name}", **look)
        axes.text(reach_ms / 100, row, f"{ms:.1f}", va="center", fontsize=11, bbox=style.white_box())
    axes.axvline(period, color="black", linewidth=2.5, linestyle="--")
    axes.set_title(f"dashed: the period, {period:.1f} ms", loc="right", fontsize=12)
    title = "hatched: the bound that holds" if played.binding else "no bound of the law holds"
    axes.set_title(f"bounds of the law, ms; {title}", loc="left", fontsize=12)
    axes.set_yticks(range(len(bounds)), [name.replace(" + transport", "\n+ transport") for name in bounds])
    axes.set_xlim(0, reach_ms)


def _stages(axes: Axes, played: Played, length_ms: float) -> None:
    entries = played.simulation.entries_by_rank
    generated = spans_of(entries[LEADER_RANK], ("generate",))
    start_ns = next(span.start_ns for span in generated if span.chunk_index == STEADY)
    for (rank, names), row in ROWS.items():
        for span in spans_of(entries[rank], names):
            _span(axes, span, row, (span.start_ns - start_ns) / 1e6, length_ms)
    axes.set_yticks(range(len(LABELS)), LABELS)
    axes.set_ylim(-0.5, len(LABELS) - 0.5)
    axes.set_xlim(0, length_ms)
    title = f"who works when, ms from the start of chunk {STEADY} on the mesh; numbers are chunks"
    axes.set_title(title, loc="left", fontsize=12)


def _span(axes: Axes, span: Span, row: float, start_ms: float, length_ms: float) -> None:
    end_ms = start_ms + span.ms
    if end_ms <= 0 or start_ms >= length_ms:
        return
    style.bar(
        axes, start_ms, end_ms, row, 0.8 if span.name in WORK else 0.35, **style.solid(span.chunk_index)
    )
    visible_ms = min(end_ms, length_ms) - max(start_ms, 0.0)
    if span.name in WORK and visible_ms > length_ms / 25:
        middle = max(start_ms, 0.0) + visible_ms / 2
        text = f"{LETTERS.get(span.name, '')}{span.chunk_index}"
        axes.text(middle, row, text, fontsize=10, bbox=style.white_box(), **style.CENTRED)
