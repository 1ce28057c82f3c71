"""What a call of torch.distributed does to its rank and to its buffer, as a picture, a table and a sentence.

Two rows for each rank. In the upper one the rank is inside a call and can do nothing else; in the lower one
the memory of the message belongs to torch. Where the lower bar is longer than the upper one, the rank is free
and its buffer is not. One message at a time in each rank: loans that overlap are drawn over each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppwork.errors import PlanError
from ppwork.moments import TOUCHES, held_ns
from ppwork.plot import chunk_style

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from ppwork.moments import Call

    Calls = Mapping[int, tuple[Call, ...]]

WIDTH, LEFT, RIGHT, TOP, BOTTOM, ROW = 11.0, 1.75, 0.35, 0.5, 1.05, 0.5
"""Of the figure, its margins and a row, in inches."""
CHAR = 0.105
"""Width of a character inside a bar, in inches."""
TALL = 0.66
ROWS = ("in the call", "buffer lent")
STRUCK = "#D55E00"
"""For what the program did to memory that was not its own, and for errors; each has its own shape, too."""
WORD_BOX = {"boxstyle": "round,pad=0.15", "facecolor": "white", "edgecolor": "none"}
NARROWEST = 0.004
"""A bar is at least so wide, as a part of the axis: a call of microseconds is to be seen."""


def plot_moments(calls: Calls, *, title: str = "") -> Figure:
    """Draw the calls of every rank, in milliseconds from the first one.

    Args:
        calls: By rank, from ``calls_of``.
        title: What was run.

    Raises:
        PlanError: No rank made a call.
    """
    from matplotlib.figure import Figure

    start, end = _window(calls)
    height = TOP + len(calls) * 2 * ROW + BOTTOM
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    box = (LEFT / WIDTH, BOTTOM / height, (WIDTH - LEFT - RIGHT) / WIDTH, 1 - (TOP + BOTTOM) / height)
    axes = figure.add_axes(box)
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold")
    length = (end - start) / 1e6
    axes.set_xlim(-0.01 * length, 1.03 * length)
    axes.set_ylim(2 * len(calls) - 0.5, -0.5)
    axes.set_xlabel("milliseconds from the first call", fontsize=11)
    axes.tick_params(axis="x", labelsize=11)
    axes.tick_params(axis="y", length=0)
    axes.set_yticks(range(2 * len(calls)), ROWS * len(calls), fontsize=11)
    axes.spines[["top", "right", "left"]].set_visible(False)
    for place, (rank, mine) in enumerate(sorted(calls.items())):
        if place:
            axes.axhline(2 * place - 0.5, color="#999999", linewidth=0.8)
        axes.text(
            -LEFT / (WIDTH - LEFT - RIGHT) * 0.98, 2 * place + 0.5, f"rank {rank}",
            transform=axes.get_yaxis_transform(), va="center", fontsize=12, fontweight="bold",
        )  # fmt: skip
        _rank(axes, 2 * place, mine, _styles(calls), start, end)
    _legend(figure, calls, height)
    return figure


def _window(calls: Calls) -> tuple[int, int]:
    every = [call for mine in calls.values() for call in mine]
    if not every:
        raise PlanError("There is no call to draw.", check_first="did the ranks print any, with `inside`?")
    ends = [call.entered_ns if call.ended_ns is None else call.ended_ns for call in every]
    return min(call.entered_ns for call in every), max(ends)


def _styles(calls: Calls) -> dict[str, dict[str, Any]]:
    """Colour and hatch of each message, in the order of the first rank that has it."""
    messages = dict.fromkeys(call.message for _, mine in sorted(calls.items()) for call in mine)
    return {
        message: {"facecolor": colour, "hatch": hatch, "edgecolor": "black", "linewidth": 0.8}
        for place, message in enumerate(messages)
        for colour, hatch in (chunk_style(place),)
    }


def _rank(
    axes: Axes, row: int, mine: tuple[Call, ...], styles: Mapping[str, Any], start: int, end: int
) -> None:
    def ms(moment_ns: int | None) -> float:
        return ((end if moment_ns is None else moment_ns) - start) / 1e6

    of_torch = [call for call in mine if call.name not in TOUCHES]
    lent = {message: held_ns(mine, message) for message in dict.fromkeys(call.message for call in of_torch)}
    inside = [(ms(c.entered_ns), ms(c.ended_ns), c.name, styles[c.message]) for c in of_torch]
    _bars(axes, row, inside)
    _bars(axes, row + 1, [(ms(since), ms(until), m, styles[m]) for m, (since, until) in lent.items()])
    for call in mine:
        if call.raised:
            axes.plot([ms(call.ended_ns)], [row], zorder=6, clip_on=False, **_mark("P"))
        if call.name in TOUCHES:
            axes.plot([ms(call.entered_ns)], [row + 1], zorder=6, clip_on=False, **_mark("X"))


def _bars(axes: Axes, row: int, bars: list[tuple[float, float, str, dict[str, Any]]]) -> None:
    """Draw bars from the left to the right, each with its word in it, behind it or in front of it."""
    from matplotlib.patches import Rectangle

    low, high = axes.get_xlim()
    inch = (high - low) / (WIDTH - LEFT - RIGHT)
    clear = low
    for place, (left, until, word, style) in enumerate(bars):
        right = max(until, left + NARROWEST * (high - low))
        axes.add_patch(Rectangle((left, row - TALL / 2), right - left, TALL, **style, zorder=3))
        after = bars[place + 1][0] if place + 1 < len(bars) else high
        need = (len(word) * CHAR + 0.2) * inch
        if need < right - left:
            at, side = (left + right) / 2, "center"
        elif need < after - right:
            at, side = right + 0.07 * inch, "left"
        elif need < left - clear:
            at, side = left - 0.07 * inch, "right"
        else:
            at, side = 0.0, ""
        if side:
            axes.text(at, row, word, ha=side, va="center", fontsize=11, zorder=5, bbox=WORD_BOX)
        clear = at + need if side == "left" else right


def _mark(shape: str) -> dict[str, Any]:
    return {
        "marker": shape,
        "markersize": 13,
        "markerfacecolor": STRUCK,
        "markeredgecolor": "white",
        "markeredgewidth": 1.2,
        "linestyle": "none",
    }


def _legend(figure: Figure, calls: Calls, height: float) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    every = [call for mine in calls.values() for call in mine]
    shown: list[Artist] = [Patch(label=message, **style) for message, style in _styles(calls).items()]
    touched = sorted({call.name for call in every if call.name in TOUCHES})
    if touched:
        shown.append(Line2D([], [], label=" / ".join(touched), **_mark("X")))
    if any(call.raised for call in every):
        shown.append(Line2D([], [], label="raises", **_mark("P")))
    figure.legend(
        handles=shown,
        loc="lower center",
        bbox_to_anchor=(0.5, 0.06 / height),
        ncols=len(shown),
        frameon=False,
        fontsize=11,
        handleheight=1.2,
    )


def moments_table(calls: Calls) -> str:
    """Return the picture as a table, in milliseconds: a line for each call, in the order of entering."""
    start, _ = _window(calls)
    width = max(len(call.message) for mine in calls.values() for call in mine)
    width = max(width, len("message"))
    head = f"{'rank':>4}  {'call':<10} {'message':<{width}}"
    lines = [f"{head} {'entered ms':>11} {'back ms':>11} {'duration ms':>12}"]
    for _, rank, call in sorted((call.entered_ns, rank, call) for rank, call in _every(calls)):
        entered = (call.entered_ns - start) / 1e6
        back, took = "never", "-"
        if call.ended_ns is not None:
            back, took = (
                f"{(call.ended_ns - start) / 1e6:.2f}",
                f"{(call.ended_ns - call.entered_ns) / 1e6:.2f}",
            )
        ended = "  raised" if call.raised else ""
        made = f"{rank:>4}  {call.name:<10} {call.message:<{width}}"
        lines.append(f"{made} {entered:>11.2f} {back:>11} {took:>12}{ended}")
    return "\n".join(lines)


def _every(calls: Calls) -> list[tuple[int, Call]]:
    return [(rank, call) for rank, mine in calls.items() for call in mine]


def moments_finding(calls: Calls) -> str:
    """State in one sentence for each rank how long each buffer was lent, and how much of that in a call."""
    _, end = _window(calls)
    said = []
    for rank, mine in sorted(calls.items()):
        parts = []
        for message in dict.fromkeys(call.message for call in mine if call.name not in TOUCHES):
            since, held = held_ns(mine, message)
            until = end if held is None else held
            own = [call for call in mine if call.message == message]
            inside = sum((c.ended_ns or end) - c.entered_ns for c in own if c.name not in TOUCHES)
            lent_ms, inside_ms = (until - since) / 1e6, inside / 1e6
            part = f"{message}: buffer lent for {lent_ms:.0f} ms, {inside_ms:.0f} ms of it in calls"
            touched = [call.name for call in own if call.name in TOUCHES and call.entered_ns < until]
            part += "".join(f", {name} meanwhile" for name in touched)
            part += ", raised" if any(call.raised for call in own) else ""
            parts.append(part)
        said.append(f"Rank {rank}: {'; '.join(parts)}.")
    return " ".join(said)
