"""The legend of the figure of a program's calls: what is drawn, and nothing else."""

from __future__ import annotations

import textwrap
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from ppwork.pictures import style
from ppwork.pictures.shown_time import END
from ppwork.timeline.meetings import START, kind_of

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.container import Container
    from matplotlib.figure import Figure

CHAR, KEY, ROOM = 0.088, 0.62, 11.9
"""Widths of a character of an entry, of its swatch and the gap after it, and of all, in inches."""
KEYS, KEYS_HIGH, NOTE_HIGH, NOTE_WIDE = 6, 0.24, 0.19, 150
"""Entries of the legend beside each other; the height of one and of a line below it, in inches; characters of
that line."""
ARROW = (
    "An arrow goes from the start of the sending call to the end of the receiving call; "
    "it does not show when bytes moved."
)
OUTSIDE: style.Style = {
    "facecolor": "white",
    "hatch": "..",
    "edgecolor": style.MEDIUM,
    "linewidth": 0.7,
    "gid": "outside",
}
"""Of a call by a rank that is not in its group."""
CLOSES: style.Style = {"color": style.ALARM, "linewidth": 1.4, "linestyle": (0, (4, 2))}
"""Of what closed a connection, to the call that it broke."""
CUT = (START, END)
_FITS: style.Style = {"color": "black", "linewidth": 1.0}
_OTHER: style.Style = {"color": style.BAD, "linewidth": 1.8}
MESSAGES: Mapping[tuple[bool, bool], tuple[str, style.Style]] = {
    (True, True): ("message", {**_FITS, "linestyle": "-"}),
    (False, True): ("message of another size or type", {**_OTHER, "linestyle": "-"}),
    (True, False): ("message that was not taken", {**_FITS, "linestyle": ":"}),
    (False, False): ("message of another size or type, not taken", {**_OTHER, "linestyle": ":"}),
}
"""Words and arrows of messages: whether one fits what its receiver wants, and whether it was taken."""
FRAME: style.Style = {"facecolor": "none", "edgecolor": style.ALARM, "linewidth": 2.6}
"""Of where a rank stood at the end, or was lost."""
OWN: style.Style = {
    "facecolor": "none",
    "edgecolor": style.DARK,
    "linewidth": 2.2,
    "linestyle": (0, (3, 1.5)),
    "gid": "own",
}
"""Of a rank that was in code of its own meanwhile: that is no fault by itself."""
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
    """Return the height that a legend with these calls may take, and a line below it, in inches."""
    return KEYS_HIGH * -(-(len(keys) + 7) // KEYS) + NOTE_HIGH


def put_legend(
    paper: Figure,
    keys: Mapping[str, style.Style],
    *,
    ends: Collection[str],
    cut_end: bool,
    bands: Iterable[Artist | Container],
    messages: Collection[str],
    stood: str,
    own: bool,
    counted: bool,
    closed: bool,
    notes: Sequence[str],
) -> None:
    """Put the legend at the foot of a figure.

    Args:
        paper: The figure, with its rows.
        keys: The calls.
        ends: Calls that start up and shut down, where there are any.
        cut_end: Whether those that shut down are out of sight.
        bands: Entries of the bands.
        messages: Words of the messages that are drawn; nothing for one without an arrow.
        stood: What is said of the places that are framed, where ranks stood; nothing if none is.
        own: Whether a time is framed in which a rank was in code of its own.
        counted: Whether lent buffers are counted.
        closed: Whether it is drawn what closed a connection.
        notes: Sentences below it.
    """
    handles: list[Artist | Container] = [style.patch_key(name, **look) for name, look in _one_each(keys)]
    words = {START: "start-up", END: "shut-down, cut short" if cut_end else "shut-down"}
    if said := "; ".join(words[name] for name in CUT if name in ends):
        handles.append(style.patch_key(said, **style.call(START)))
    handles.append(style.patch_key("the program's own code", facecolor=style.PALE))
    if counted:
        look = {"facecolor": style.MEDIUM, "edgecolor": style.DARK, "linewidth": 0.5}
        handles.append(style.patch_key("n buffers lent", **look))
    if any(patch.get_gid() == OUTSIDE["gid"] for axes in paper.axes for patch in axes.patches):
        handles.append(style.patch_key("call by a rank that is not in the group", **OUTSIDE))
    handles += bands
    for kind, look in MESSAGES.values():
        if kind in messages:
            handles.append(style.line_key(kind, marker=">", markersize=5, **look))
    if closed:
        handles.append(style.line_key("closed the connection", marker=">", markersize=5, **CLOSES))
    if stood:
        handles.append(style.patch_key(stood, **FRAME))
    if own:
        handles.append(style.patch_key("in code of its own", **OWN))
    drawn = {line.get_marker() for axes in paper.axes for line in axes.lines}
    handles += [style.line_key(word, **mark_of(shape)) for word, shape in MARKS if shape in drawn]
    columns = _columns([str(handle.get_label()) for handle in handles])
    notes = [*([ARROW] if any(messages) else []), *notes]
    lines = [line for note in notes for line in textwrap.wrap(note, NOTE_WIDE)]
    for n, line in enumerate(reversed(lines)):
        at = (0.06 + n * NOTE_HIGH) / paper.get_size_inches()[1]
        paper.text(0.5, at, line, ha="center", va="bottom", fontsize=9, color=style.DARK)
    above = 0.06 + NOTE_HIGH * len(lines)
    look = {"fontsize": 10, "handleheight": 1.2, "columnspacing": 1.4}
    style.legend_below(paper, handles, inches=above, ncols=columns, **look)


def _columns(labels: Sequence[str]) -> int:
    """Return how many entries stand beside each other: as many as have room, in rows of one length."""
    for most in range(KEYS, 1, -1):
        rows = -(-len(labels) // most)
        columns = -(-len(labels) // rows)
        each = [labels[n : n + rows] for n in range(0, len(labels), rows)]
        if sum(max(map(len, column)) * CHAR + KEY for column in each) <= ROOM:
            return columns
    return 1


def _one_each(keys: Mapping[str, style.Style]) -> Iterable[tuple[str, style.Style]]:
    """Yield each look once: names of one collective, old and new, have one."""
    alike: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for name, look in keys.items():
        alike[kind_of(name), look["facecolor"], look["hatch"]].append(name)
    for names in alike.values():
        yield " = ".join(names), keys[names[0]]


def _order(name: str) -> tuple[int, str]:
    return next((n for n, known in enumerate(style.CALLS) if name == known), len(style.CALLS)), name
