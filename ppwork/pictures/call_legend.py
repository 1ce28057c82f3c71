"""The legend of the figure of a program's calls: what is drawn, and nothing else."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import TYPE_CHECKING

from ppwork.pictures import style
from ppwork.pictures.shown_time import END
from ppwork.timeline.meetings import START

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.figure import Figure

KEYS, KEYS_HIGH = 6, 0.24
"""Entries of the legend beside each other, and the height of one, in inches."""
CUT = (START, END)
FRAME: style.Style = {"facecolor": "none", "edgecolor": style.ALARM, "linewidth": 2.6}
"""Of where a rank stood at the end."""
MARKS = (("came last", "v"), ("never received", "X"), ("raised", "P"), ("ended by a signal", "8"))
"""Words of the markers, by their shapes."""


def mark_of(shape: str) -> style.Style:
    """Return the style of a marker: one of what went wrong stands out."""
    return style.mark(shape, 9) if shape == "v" else style.mark(shape, 12, style.BAD, edge=1.2)


def keys_of(names: Iterable[str]) -> dict[str, style.Style]:
    """Return the styles of the calls that the legend names, in the order of the styles."""
    known = {name: style.call(name) for name in dict.fromkeys(names) if name not in CUT}
    return dict(sorted(known.items(), key=lambda one: _order(one[0])))


def height_of(keys: Collection[str]) -> float:
    """Return the height that a legend with these calls may take, in inches."""
    return KEYS_HIGH * -(-(len(keys) + 6) // KEYS)


def put_legend(
    paper: Figure,
    keys: Mapping[str, style.Style],
    *,
    ends: Collection[str],
    cut_end: bool,
    bands: Iterable[Artist],
    messages: Collection[str],
    stood: bool,
) -> None:
    """Put the legend at the foot of a figure.

    Args:
        paper: The figure, with its rows.
        keys: The calls.
        ends: Calls that start up and shut down, where there are any.
        cut_end: Whether those that shut down are out of sight.
        bands: Entries of the bands.
        messages: Kinds of messages that are drawn.
        stood: Whether a place is framed where a rank stood.
    """
    handles: list[Artist] = [style.patch_key(name, **look) for name, look in keys.items()]
    words = {START: "start-up", END: "shut-down, cut" if cut_end else "shut-down"}
    if said := "; ".join(words[name] for name in CUT if name in ends):
        handles.append(style.patch_key(said, **style.call(START)))
    handles.append(style.patch_key("the program's own code", facecolor=style.PALE))
    handles += bands
    arrow = {"linestyle": "-", "marker": ">", "markersize": 5}
    if "message" in messages:
        handles.append(style.line_key("message", color="black", linewidth=1.0, **arrow))
    if "other" in messages:
        handles.append(
            style.line_key("message of another size or type", color=style.BAD, linewidth=1.8, **arrow)
        )
    patches = [patch for axes in paper.axes for patch in axes.patches]
    if any(patch.get_linestyle() == ":" for patch in patches):
        colour = style.BAD if "other" in messages else "black"
        handles.append(style.line_key("message that was not taken", color=colour, linestyle=":"))
    if stood:
        handles.append(style.patch_key("stood here", **FRAME))
    drawn = {line.get_marker() for axes in paper.axes for line in axes.lines}
    handles += [style.line_key(word, **mark_of(shape)) for word, shape in MARKS if shape in drawn]
    columns = -(-len(handles) // -(-len(handles) // KEYS))
    style.legend_below(paper, handles, ncols=columns, fontsize=10, handleheight=1.2, columnspacing=1.4)


def _order(name: str) -> tuple[int, str]:
    return next((n for n, known in enumerate(style.CALLS) if name == known), len(style.CALLS)), name
