"""Streams on paper: a row per queue, a box per operation, an arrow per wait of one queue for another.

Nothing here was recorded: each operation takes as long as it is told, and begins as soon as its queue is free
and its waits are over. ``pictures.rings`` draws the library's own queues with the same boxes and arrows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ppwork.errors import PlanError
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, MARGINS, ROW, HIGH = 12.0, (2.0, 0.25, 0.5, 1.0), 0.72, 0.5
"""Of the figure, its margins, a row and the part of it that a box takes, in inches (the last in rows)."""
CHAR = 0.08
"""Width of a character of 9 points, in inches."""
LARGE = 12
"""Of the text at an operation, in points: as large as the rows' names."""
TAKES_MS = 5.0
MISSING = "missing"
TORN = "! collision: one buffer, and no wait between them"
Pairs = Sequence[tuple[str, str]]


class Placed(NamedTuple):
    """An operation, and when it runs."""

    queue: str
    start_ms: float
    end_ms: float


def queues(
    rows: Mapping[str, Sequence[str]],
    *,
    waits: Pairs = (),
    without: Pairs = (),
    ms: Mapping[str, float] | None = None,
) -> Picture:
    """Return what runs when in some queues, with an arrow for each wait of one for another.

    Args:
        rows: Operations of each queue, in order; their names are unique, such as ``fill 1``.
        waits: Pairs of operations: the second waits for the first.
        without: Pairs that would need a wait and have none: both are marked where the second begins before
            the first has ended, and an arrow shows the wait that is missing.
        ms: Length of operations by their first word, in made-up milliseconds; 5 where nothing is said. 0 is a
            mark in the queue.

    Raises:
        PlanError: A name is there twice or in no queue, a length is negative, or the waits are a circle.
    """
    placed = _placed(rows, waits, ms or {})
    for name in (name for pair in without for name in pair):
        _known(placed, name)
    torn = [pair for pair in without if placed[pair[1]].start_ms < placed[pair[0]].end_ms]
    length = max(operation.end_ms for operation in placed.values())
    finding = f"On paper: {len(placed)} operations in {len(rows)} queues take {length:g} ms."
    for first, second in torn:
        finding += f" {second} begins at {placed[second].start_ms:g} ms, "
        finding += f"and {first} ends at {placed[first].end_ms:g} ms: no wait stands between them."
    lines = [
        [
            operation.queue,
            name,
            f"{operation.start_ms:g}",
            f"{operation.end_ms:g}",
            ", ".join(first for first, second in waits if second == name) or "-",
        ]
        for name, operation in placed.items()
    ]
    head = ["queue", "operation", "from, ms", "to, ms", "waits for"]
    table = Table(head, lines, above="queues on paper; made-up times, nothing was recorded")
    return Picture(finding, lambda: _draw(list(rows), placed, waits, torn), table)


def box(
    axes: Axes,
    span: tuple[float, float, float],
    words: Sequence[str],
    inches_per_ms: float,
    *,
    torn: bool,
    gid: str,
    shade: str = "white",
    size: float = 9,
) -> None:
    """Draw an operation, with the longest of some texts for which it has room.

    Args:
        axes: Its row is a unit high.
        span: Start, end and row.
        words: Texts, the longest first.
        inches_per_ms: Of the time axis.
        torn: Whether it has a thick border and a ``!``.
        gid: Name of the box in the figure.
        shade: Its colour.
        size: Of its text, in points.
    """
    start, end, row = span
    style.bar(axes, start, end, row, HIGH, zorder=3, gid=gid, facecolor=shade, edgecolor="black")
    if torn:
        style.bar(axes, start, end, row, HIGH, zorder=4, fill=False, edgecolor=style.BAD, linewidth=3.5)
    room = (end - start) * inches_per_ms - 0.06
    texts = [f"{mark}{word}" for word in words for mark in (("! ", "!") if torn else ("",))]
    fits = (text for text in texts if max(map(len, text.splitlines())) * CHAR * size / 9 < room)
    if text := next(fits, ""):
        axes.text((start + end) / 2, row, text, fontsize=size, zorder=6, linespacing=1.1, **style.CENTRED)


def wait_arrow(
    axes: Axes,
    tail: tuple[float, float],
    head: tuple[float, float],
    *,
    gid: str,
    dashed: bool = False,
    mark: bool = False,
    missing: bool = False,
    harmless: bool = False,
) -> None:
    """Draw a wait: from the end of an operation to the beginning of the one that waits for it.

    Args:
        axes: A row is a unit high.
        tail: End and row of the first operation.
        head: Start and row of the second one; over more than one row the arrow is bent around what is
            there, unless it goes back in time.
        gid: Name of the arrow in the figure.
        dashed: Whether it gives a buffer back.
        mark: Whether the first operation is a mark, which has no height.
        missing: Whether this wait was left out.
        harmless: Whether nothing came too early without it.
    """
    way = HIGH / 2 if tail[1] < head[1] else -HIGH / 2
    bend = 0.0 if abs(tail[1] - head[1]) <= 1 or head[0] < tail[0] else -0.22
    style.arrow(
        axes,
        (tail[0], tail[1] if mark else tail[1] + way),
        (head[0], head[1] - way),
        color=style.ALARM if missing else style.DARK if dashed else "black",
        linestyle="dashed" if dashed or missing else "solid",
        connectionstyle=f"arc3,rad={bend}",
        linewidth=2.4 if missing and not harmless else 1.6,
        mutation_scale=12,
        zorder=5,
        gid=gid,
    )


def _known(placed: Mapping[str, Placed], name: str) -> None:
    if name not in placed:
        raise PlanError(
            f"A wait names {name!r}, which is in no queue.", check_first=f"operations: {', '.join(placed)}"
        )


def _placed(rows: Mapping[str, Sequence[str]], waits: Pairs, ms: Mapping[str, float]) -> dict[str, Placed]:
    names = [name for operations in rows.values() for name in operations]
    if not names or len(set(names)) < len(names) or any(length < 0 for length in ms.values()):
        raise PlanError(
            f"The operations {names} cannot be drawn.",
            check_first="at least one, each name once, no negative length",
        )
    for name in (name for pair in waits for name in pair):
        _known(dict.fromkeys(names, Placed("", 0, 0)), name)
    left = {queue: list(operations) for queue, operations in rows.items()}
    free, placed = dict.fromkeys(rows, 0.0), dict[str, Placed]()
    while len(placed) < len(names):
        ready = [
            (queue, operations[0])
            for queue, operations in left.items()
            if operations and all(first in placed for first, second in waits if second == operations[0])
        ]
        if not ready:
            first = [operations[0] for operations in left.values() if operations]
            raise PlanError(f"{' and '.join(first)} wait for each other.", check_first="waits: no circle")
        for queue, name in ready:
            held = [placed[before].end_ms for before, after in waits if after == name]
            start = max([free[queue], *held])
            free[queue] = start + ms.get(name.split()[0], TAKES_MS)
            placed[name] = Placed(queue, start, free[queue])
            left[queue].pop(0)
    return placed


def _draw(rows: list[str], placed: Mapping[str, Placed], waits: Pairs, torn: Pairs) -> Figure:
    length = max(operation.end_ms for operation in placed.values()) or 1.0
    figure, (axes,) = style.stacked([len(rows) * ROW], WIDTH, MARGINS)
    axes.set_xlim(-0.01 * length, length * 1.01)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(range(len(rows)), rows, fontsize=12)
    axes.set_xlabel("made-up milliseconds", fontsize=10)
    style.open_frame(axes)
    axes.set_title("On paper, not recorded. A row is a queue, an arrow is a wait.", loc="left", fontsize=12)
    inches = (WIDTH - MARGINS[0] - MARGINS[1]) / length
    marked = {name for pair in torn for name in pair}
    for name, (queue, start, end) in placed.items():
        row = rows.index(queue)
        if start == end:
            axes.plot([start], [row], clip_on=False, zorder=6, gid=name, **style.mark("D", 9))
            side = "left" if start < length / 2 else "right"  # at the right edge there is no room for it
            axes.text(start, row - 0.16, name, fontsize=LARGE, va="bottom", ha=side)
        else:
            box(axes, (start, end, row), [name], inches, torn=name in marked, gid=name, size=LARGE)
    for number, (first, second) in enumerate(waits):
        tail, head = placed[first], placed[second]
        at, to_row = rows.index(tail.queue), rows.index(head.queue)
        is_mark = tail.start_ms == tail.end_ms
        start_ms = tail.end_ms + (0.07 / inches if is_mark else 0.0)  # of a mark its right corner
        wait_arrow(axes, (start_ms, at), (head.start_ms, to_row), gid=f"wait {number}", mark=is_mark)
    for first, second in torn:
        tail, head = placed[first], placed[second]
        at, to_row = rows.index(tail.queue), rows.index(head.queue)
        ends = (tail.end_ms, at), (head.start_ms, to_row)
        wait_arrow(axes, *ends, gid=f"missing {first}", missing=True)
        beside = (tail.end_ms + head.start_ms) / 2 + 0.15 / inches, (at + to_row) / 2 + 0.1
        axes.text(*beside, MISSING, fontsize=10, color=style.ALARM, fontweight="bold", va="center")
    if torn:
        frame: style.Style = {"facecolor": "white", "edgecolor": style.BAD, "linewidth": 3.0}
        style.legend_below(figure, [style.patch_key(TORN, **frame)], fontsize=10)
    return figure
