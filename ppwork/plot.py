"""Pictures of what every rank did: one lane per rank and helper thread, chunks by colour and hatch.

Work is solid, transfers are thin, waiting is pale, and the grey behind a compute lane is its idle time.
Nothing here knows processes or files; ``text_timeline`` says the same in words.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

from ppwork.lives import (
    TRANSFERS,
    WAITS,
    WAYS,
    WORK,
    EntriesByRank,
    View,
    busy,
    carriers,
    is_of_chunk,
    spans_by_chunk,
    total_ns,
    view_of,
)
from ppwork.text_timeline import alt_text
from ppwork.timeline import Instant, Span
from ppwork.topology import STAGE0_RANK, Topology

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

__all__ = ["LETTERS", "alt_text", "as_png", "chunk_style", "compare_timelines", "plot_timeline"]

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#56B4E9", "#CC79A7", "#F0E442")
"""Okabe and Ito's, without black; neighbours far apart."""
HATCHES = ("", "///", "...", "\\\\\\", "xx")
LETTERS = {"encode": "e", "decode": "d"}
"""Where a box of rank 0 has no room for the word: its number alone would not say which half it is."""
MARKERS = {"envelope.send": "v", "mesh.broadcast": "D", "result.send": "s", "emit": "*", "drop": "X"}
"""Commitment points, the emission, and what stands in its place after a flush."""
WIDTH, LEFT, RIGHT, TOP, BOTTOM = 12.0, 1.75, 0.95, 0.5, 1.2
"""Of the figure and its margins, in inches."""
CHAR = 0.085
"""Width of a character of the smallest text, in inches."""
HEIGHTS = {**dict.fromkeys(WORK, 0.76), **dict.fromkeys(TRANSFERS, 0.3), **dict.fromkeys(WAITS, 0.6)}


def chunk_style(chunk_index: int) -> tuple[str, str]:
    """Return colour and hatch of a chunk; both differ between neighbours, and 35 pairs are used in turn."""
    return COLOURS[chunk_index % len(COLOURS)], HATCHES[chunk_index % len(HATCHES)]


def plot_timeline(
    entries_by_rank: EntriesByRank,
    *,
    title: str = "",
    first_chunk: int | None = None,
    last_chunk: int | None = None,
    clock_offset_ns: Mapping[int, int] | None = None,
) -> Figure:
    """Draw what every rank and lane did, in milliseconds from the first shown span.

    Args:
        entries_by_rank: Entries of every rank.
        title: What run this is; the shown chunks are added.
        first_chunk: First chunk to show; default: an ordinary stretch of 5 chunks, or all of a short run.
        last_chunk: Last chunk to show, included.
        clock_offset_ns: What to subtract from the times of each rank; default: what the entries say.

    Raises:
        PlanError: There is nothing to draw.
    """
    view = view_of(entries_by_rank, first_chunk, last_chunk, clock_offset_ns)
    return _figure([view], [title], pitch=0.33)


def compare_timelines(
    a: EntriesByRank,
    b: EntriesByRank,
    labels: tuple[str, str],
    *,
    first_chunk: int | None = None,
    last_chunk: int | None = None,
) -> Figure:
    """Draw two runs, one above the other, on one time axis; each starts with its first shown span.

    Both show the same chunks where they can: those asked for, else an ordinary stretch of the first run.

    Raises:
        PlanError: There is nothing to draw.
    """
    above = view_of(a, first_chunk, last_chunk, None)
    if {above.first, above.last} <= spans_by_chunk(b).keys():
        first_chunk, last_chunk = above.first, above.last
    return _figure([above, view_of(b, first_chunk, last_chunk, None)], list(labels), pitch=0.26)


def as_png(figure: Figure, *, alt: str) -> bytes:
    """Return the picture as a PNG file that carries ``alt`` as its description."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=120, metadata={"Description": alt})
    return buffer.getvalue()


def _figure(views: list[View], titles: list[str], *, pitch: float) -> Figure:
    from matplotlib.figure import Figure

    tall = sum(view.height for view in views) * pitch
    height = tall + TOP * len(views) + BOTTOM
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    length = max(view.length_ms for view in views)
    below = height
    for view, title in zip(views, titles, strict=True):
        below -= TOP + view.height * pitch
        box = (LEFT, below, WIDTH - LEFT - RIGHT, view.height * pitch)
        axes = figure.add_axes((box[0] / WIDTH, box[1] / height, box[2] / WIDTH, box[3] / height))
        _draw(axes, view, box[2] / (length * 1.01))
        shown = f"chunks {view.first} to {view.last}" if view.first < view.last else f"chunk {view.first}"
        axes.set_title(f"{title}: {shown}" if title else shown.capitalize(), loc="left", fontsize=12)
        axes.set_xlim(0, length * 1.01)
        axes.tick_params(axis="x", labelsize=10, labelbottom=view is views[-1])
    axes.set_xlabel("time from the first shown span, ms", fontsize=10)
    _legends(figure, views, height)
    return figure


def _draw(axes: Axes, view: View, inches_per_ms: float) -> None:
    from matplotlib.patches import Rectangle

    calls = carriers(view.ranks)
    for (rank, lane), row in view.rows.items():
        mine = [entry for entry in view.ranks[rank] if entry.lane == lane]
        if any(entry.name in WORK for entry in mine):
            axes.add_patch(Rectangle((0, row - 0.46), view.length_ms, 0.92, facecolor="#E4E4E4", zorder=0))
            idle = 1 - total_ns(busy(mine, WORK, view.start_ns, view.end_ns)) / (view.end_ns - view.start_ns)
            axes.text(
                1.01, row, f"idle {idle:.0%}", transform=axes.get_yaxis_transform(), va="center", fontsize=10
            )
        for entry in mine:
            known = is_of_chunk(entry, calls)
            if isinstance(entry, Instant):
                if known and entry.name in MARKERS and view.start_ns <= entry.at_ns <= view.end_ns:
                    _mark(axes, view, rank, entry)
            elif entry.chunk_index >= 0 and view.shows(entry):
                _span(axes, view, row, entry, inches_per_ms, known=known)
    axes.set_ylim(view.height - 0.5, -0.5)
    axes.set_yticks(list(view.rows.values()), [lane for _, lane in view.lanes], fontsize=9)
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    topology = Topology(max(view.ranks))
    for rank in sorted({rank for rank, _ in view.lanes}):
        rows = [row for (owner, _), row in view.rows.items() if owner == rank]
        axes.text(
            -0.175,
            (rows[0] + rows[-1]) / 2,
            f"rank {rank}\n{topology.role(rank)}",
            transform=axes.get_yaxis_transform(),
            va="center",
            fontsize=10,
            fontweight="bold",
        )


def _solid(chunk_index: int) -> dict[str, Any]:
    colour, hatch = chunk_style(chunk_index)
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.6}


def _pale(chunk_index: int) -> dict[str, Any]:
    from matplotlib.colors import to_rgba

    return {"facecolor": to_rgba(chunk_style(chunk_index)[0], 0.12), "edgecolor": "#999999", "linewidth": 0.6}


def _span(axes: Axes, view: View, row: float, span: Span, inches_per_ms: float, *, known: bool) -> None:
    from matplotlib.patches import Rectangle

    waits, works = span.name in WAITS, span.name in WORK
    style = _pale(span.chunk_index) if waits else _solid(span.chunk_index)
    if not known:
        style |= {"facecolor": "#F6F6F6" if waits else "#777777", "hatch": ""}
    left, height = view.at(span.start_ns), HEIGHTS.get(span.name, 0.3)
    width = view.at(span.end_ns) - left
    gid = f"chunk{span.chunk_index}.{span.name}" if known else f"control.{span.name}"
    place = (left, row - height / 2)
    axes.add_patch(Rectangle(place, width, height, **style, zorder=2 if waits else 3, gid=gid))
    room = width * inches_per_ms - 0.08
    short = f"{LETTERS.get(span.name, '')}{span.chunk_index}"
    words = (f"{'waits for' if waits else span.name} {span.chunk_index}", short)
    text = next((word for word in words if len(word) * CHAR < room), None) if known else None
    if text and (works or waits):
        box = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"} if works else None
        style = {"ha": "center", "va": "center", "color": "black" if works else "#555555", "bbox": box}
        axes.text(left + width / 2, row, text, fontsize=9, zorder=5, **style)


def _mark(axes: Axes, view: View, rank: int, instant: Instant) -> None:
    _, lane, _ = WAYS.get(instant.name, (rank, instant.lane, ""))  # on the lane whose transfer it begins
    row = view.rows[(rank, lane) if (rank, lane) in view.rows else (rank, instant.lane)]
    place = (view.at(instant.at_ns), row - (0.5 if instant.name == "emit" else 0.38))
    gid = f"chunk{instant.chunk_index}.{instant.name}"
    style: dict[str, Any] = {"linestyle": "none", "zorder": 6, "clip_on": False, **_marker(instant.name)}
    axes.plot(*([at] for at in place), gid=gid, **style)
    if instant.name == "drop":
        number = str(instant.chunk_index)
        axes.annotate(number, place, xytext=(6, 3), textcoords="offset points", fontsize=9)


def _marker(name: str) -> dict[str, Any]:
    return {
        "marker": MARKERS[name],
        "markersize": 11 if name == "emit" else 7,
        "markerfacecolor": "black",
        "markeredgecolor": "white",
        "markeredgewidth": 0.8,
    }


def _legends(figure: Figure, views: list[View], height: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    seen = {entry.name for view in views for entry in view.ranks[STAGE0_RANK]}
    marks = [name for name in MARKERS if name != "drop" or name in seen]
    kinds: list[Artist] = [
        Patch(facecolor="#BBBBBB", edgecolor="black", label="work (e encode, d decode)"),
        Line2D([], [], color="#555555", linewidth=4, label="transfer"),
        Patch(facecolor="#F6F6F6", edgecolor="#999999", label="waiting to receive"),
        Patch(facecolor="#E4E4E4", label="idle"),
        *(Line2D([], [], linestyle="none", label=name, **_marker(name)) for name in marks),
    ]
    shown = sorted({k for view in views for k in view.visible_chunks()})[:10]
    chunks: list[Artist] = [Patch(**_solid(k), label=f"chunk {k}") for k in shown]
    for handles, inches in ((kinds, 0.32), (chunks, 0.04)):
        figure.legend(
            handles=handles,
            loc="lower center",
            bbox_to_anchor=(0.5, inches / height),
            ncols=10,
            frameon=False,
            fontsize=9,
            columnspacing=1.2,
            handletextpad=0.5,
        )
