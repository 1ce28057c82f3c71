"""One style for every figure: paper and axes in inches, colours and hatches, bars, marks, legends.

No colour says anything alone: a hatch, a shape or a line says the same. matplotlib is imported when something
is drawn, and its defaults are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.container import Container
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

Style = dict[str, Any]
"""Keywords of matplotlib."""

BLUE, ORANGE, GREEN, VERMILION = "#0072B2", "#E69F00", "#009E73", "#D55E00"
SKY, PURPLE, YELLOW = "#56B4E9", "#CC79A7", "#F0E442"
COLOURS = ("#9BDDF2", "#F7C59F", "#C9DA5B", "#D9C2F0", "#F3E08B", "#FFB3C1", "#A9CDB4")
"""Of chunks and series: pale, so that none is the colour of a call or of what went wrong."""
BROWN = "#8C6D46"
HATCHES = ("", "///", "...", "\\\\\\", "xx")
BAD, BAD_PAPER = VERMILION, "#FBE3D6"
"""The colour of what went wrong, which has a shape or a line of its own besides, and the paper below it."""
ALARM = "#8B1A00"
"""Of what is said of a rank that stands: on white, where ``BAD`` is too pale to be read."""
DARK, GREY, LINE, MEDIUM, PALE, FAINT = "#555555", "#777777", "#999999", "#BBBBBB", "#E4E4E4", "#F6F6F6"
STATE_COLOURS = {"busy": GREEN, "slow": ORANGE, "stuck": VERMILION}
"""Of a rank's state, besides the word and never instead of it."""
WORK_STEPS: dict[str, tuple[str, str]] = {
    "encode": (PALE, ""), "preflight": (DARK, ""), "generate": (PALE, "--"), "decode": (PALE, "oo"),
}  # fmt: skip
"""Of a step of a stage where its colour does not say the chunk: grey, as a program's own code is."""
TALL, CHAR = 0.66, 0.105
"""Height of a bar that has a word, in rows, and width of a character of it, in inches."""
NARROWEST = 0.004
"""Width of the narrowest bar, as a part of the axis: a call of microseconds is to be seen."""
CENTRED: Style = {"ha": "center", "va": "center"}
CALLS: dict[str, tuple[str, str]] = {
    "send": (BLUE, ""), "isend": (BLUE, "///"), "batch_isend_irecv": (BLUE, "xx"),
    "recv": (GREEN, "..."), "irecv": (GREEN, "\\\\\\"),
    "broadcast": (ORANGE, ""), "scatter": (ORANGE, "///"),
    "all_reduce": (PURPLE, ""), "reduce": (PURPLE, "///"), "reduce_scatter": (PURPLE, "xx"),
    "all_gather": (SKY, "xx"), "all_gather_object": (SKY, "--"), "gather": (SKY, "///"),
    "all_to_all": (SKY, "..."),
    "barrier": (YELLOW, ""), "monitored_barrier": (YELLOW, "///"),
    "new_group": (BROWN, ""), "wait": ("white", "////"),
    "DistributedDataParallel": (ORANGE, "xx"), "backward of DDP": (PURPLE, "..."),
    "init_process_group": (MEDIUM, ""), "destroy_process_group": (MEDIUM, ""),
}  # fmt: skip
"""Of a call of torch.distributed the same in every figure, and of nothing else there; those of
``groups.GROUPS`` agree with it."""
OTHER_CALLS = (FAINT, "++")


def chunk_style(number: int) -> tuple[str, str]:
    """Return colour and hatch of a chunk or series; both differ between neighbours, of 35 pairs."""
    return COLOURS[number % len(COLOURS)], HATCHES[number % len(HATCHES)]


def solid(number: int, linewidth: float = 0.8) -> Style:
    """Return the style of a filled patch in a chunk's colour and hatch."""
    colour, hatch = chunk_style(number)
    return {"facecolor": colour, "hatch": hatch, "edgecolor": "black", "linewidth": linewidth}


def call(name: str) -> Style:
    """Return the style of a call, by its function or its operator: ``c10d::allreduce_`` is ``all_reduce``."""
    word = name.rpartition("::")[2].replace("_", "")
    if word.startswith(("new", "split", "shrink")):
        word = "newgroup"
    kinds = [kind for kind in CALLS if word.startswith(kind.replace("_", ""))]
    colour, hatch = CALLS[max(kinds, key=len)] if kinds else OTHER_CALLS
    edge = LINE if colour == "white" else "black"
    return {"facecolor": colour, "hatch": hatch, "edgecolor": edge, "linewidth": 0.7}


def call_colour(name: str) -> str:
    """Return the colour of a call alone, for lanes without hatches."""
    return str(call(name)["facecolor"])


def mark(shape: str, size: float, colour: str = "black", edge: float = 0.8) -> Style:
    """Return the style of a marker with a white edge, which stands clear of what is below it."""
    edges = {"markeredgecolor": "white", "markeredgewidth": edge, "linestyle": "none"}
    return {"marker": shape, "markersize": size, "markerfacecolor": colour, **edges}


def raised(size: float = 13) -> Style:
    """Return the mark of a rank that raised, or gave up."""
    return mark("P", size, BAD, edge=1.2)


def never_received(size: float = 12) -> Style:
    """Return the mark of a message that nobody received."""
    return mark("X", size, BAD, edge=1.2)


def fault(size: float = 13) -> Style:
    """Return the mark of the moment and the rank in which something was broken on purpose."""
    return mark("p", size, edge=1)


def white_box(pad: float = 0.15) -> Style:
    """Return the box behind a text that stands on hatches or lines."""
    return {"boxstyle": f"round,pad={pad}", "facecolor": "white", "edgecolor": "none"}


def figure(width: float, height: float, **layout: Any) -> Figure:  # noqa: ANN401  of matplotlib
    """Return an empty white figure of this size in inches."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor="white", **layout)


def page(width: float, height: float) -> tuple[Figure, Axes]:
    """Return a figure that is one drawing, and its axes: inches from the upper left, no frame."""
    paper = figure(width, height)
    axes = paper.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.set_axis_off()
    return paper, axes


def stacked(
    heights: Sequence[float], width: float, margins: tuple[float, float, float, float]
) -> tuple[Figure, list[Axes]]:
    """Return a figure with axes below each other; everything in inches.

    Args:
        heights: Of the axes.
        width: Of the figure.
        margins: On the left, on the right, above each of the axes, and below the last.
    """
    left, right, above, below = margins
    tall = sum(heights) + above * len(heights) + below
    paper, every, foot = figure(width, tall), [], 0.0
    for height in heights:
        foot += above + height
        box = (left / width, 1 - foot / tall, (width - left - right) / width, height / tall)
        every.append(paper.add_axes(box))
    return paper, every


def open_frame(axes: Axes, *, left: bool = True) -> None:
    """Leave out the sides of the frame that carry no axis.

    Args:
        axes: The axes.
        left: Whether the left side goes, too: its rows have names and no scale.
    """
    axes.spines[["top", "right", *(["left"] if left else [])]].set_visible(False)
    if left:
        axes.tick_params(axis="y", length=0)


def bar(axes: Axes, start: float, end: float, middle: float, height: float, **style: Any) -> None:  # noqa: ANN401
    """Draw a bar from ``start`` to ``end`` around a row's middle; nothing if it ends before it starts."""
    from matplotlib.patches import Rectangle

    if end >= start:
        axes.add_patch(Rectangle((start, middle - height / 2), end - start, height, **style))


def arrow(axes: Axes, tail: tuple[float, float], head: tuple[float, float], **style: Any) -> None:  # noqa: ANN401
    """Draw an arrow between two places."""
    from matplotlib.patches import FancyArrowPatch

    look = {"arrowstyle": "-|>", "mutation_scale": 15, "shrinkA": 0, "shrinkB": 0, **style}
    axes.add_patch(FancyArrowPatch(tail, head, **look))


def beside(axes: Axes, x: float, row: float, text: str, **style: Any) -> None:  # noqa: ANN401
    """Write beside a row of some axes, ``x`` in widths of the axes; text on the left is below 0."""
    axes.text(x, row, text, transform=axes.get_yaxis_transform(), **style)


def margin(axes: Axes) -> float:
    """Return where texts in the left margin begin, in widths of the axes."""
    box = axes.get_position()
    return float(-0.98 * box.x0 / box.width)


def line_key(label: str, **style: Any) -> Line2D:  # noqa: ANN401
    """Return the legend's entry of a line or a marker."""
    from matplotlib.lines import Line2D

    return Line2D([], [], label=label, **style)


def patch_key(label: str, **style: Any) -> Patch:  # noqa: ANN401
    """Return the legend's entry of a bar or an area."""
    from matplotlib.patches import Patch

    return Patch(label=label, **style)


def patches_key(label: str, looks: Sequence[Style]) -> Container:
    """Return the legend's entry of areas of several colours that mean the same."""
    from matplotlib.container import Container
    from matplotlib.patches import Patch

    return Container([Patch(**look) for look in looks], label=label)


def legend_below(
    paper: Figure,
    handles: Sequence[Artist | Container],
    *,
    inches: float = 0.06,
    **style: Any,  # noqa: ANN401
) -> None:
    """Put a legend without a frame at the foot of a figure, ``inches`` above its edge."""
    from matplotlib.container import Container
    from matplotlib.legend_handler import HandlerTuple

    at = (0.5, inches / paper.get_size_inches()[1])
    side_by_side = {Container: HandlerTuple(ndivide=None, pad=0.0)}
    look = {"ncols": len(handles), "fontsize": 11, "handler_map": side_by_side, **style}
    paper.legend(handles=handles, loc="lower center", bbox_to_anchor=at, frameon=False, **look)
