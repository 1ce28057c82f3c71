"""The rings of slots on paper: a row per stream, a box per operation, an arrow per wait of one for another.

Nothing here was recorded: ``timeline.slot_ring`` makes the times, and the title says so. A recorded run is
``timeline``'s.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.queues import HIGH, MISSING, TORN, box, wait_arrow
from ppwork.pictures.tables import Table
from ppwork.timeline.slot_ring import EDGES, RECEIVER, SENDER, STREAMS, OnPaper, RingWait, SlotWork, on_paper

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDTH, MARGINS, ROW = 12.0, (2.75, 0.25, 0.75, 1.15), 1.0
"""Of the figure, its margins and a row, in inches."""
RANKS = {SENDER: "rank 0\nstage0", RECEIVER: "rank 1\nleader"}
SHORT = {"fill": "f", "broadcast": "b", "take": "t", "generate": "g", "send": "s", "receive": "r"}
"""Where a box has no room for the word."""
OF_NO_SLOT = "generate"
"""It works on what ``take`` has copied out of the slot."""
TRANSFER: style.Style = {"color": style.GREY, "linewidth": 1.2, "zorder": 2}
"""Line between the two ends of a transfer, which is no wait."""
SHADES = ("white", style.PALE, style.MEDIUM)
"""Of boxes, by their slot."""


def edges(*, without: str = "", chunks: int = 4, slots: int = 2, sides: str = "both") -> Picture:
    """Return the operations of the rings on paper, with an arrow for each wait of one stream for another.

    Args:
        without: An edge to leave out: ``send``, ``refill``, ``relay``, ``take`` or ``reuse``. Its arrows are
            drawn as missing, and what then touches a slot too early has a thick border.
        chunks: Messages.
        slots: Length of each ring.
        sides: ``both``, ``sender`` or ``receiver``.

    Raises:
        PlanError: There is no such edge on these sides, or nothing to show.
    """
    paper = on_paper(chunks=chunks, slots=slots, without=without, sides=sides)
    return Picture(_finding(paper, without), lambda: _draw(paper, without), _table(paper, without))


def _finding(paper: OnPaper, without: str) -> str:
    length = max(work.end_ms for work in paper.works.values())
    if not without:
        return (
            f"On paper, with every wait in its place: {len(paper.waits)} waits, and no operation touches a "
            f"slot too early. It takes {length:g} ms."
        )
    if not paper.torn:
        return (
            f"On paper, without the edge {without}: nothing is touched too early with these times, by luck."
        )
    first, count = paper.torn[0], len(paper.torn)
    return (
        f"On paper, without the edge {without}: {first.after} begins at {first.after.start_ms:g} ms, and "
        f"{first.before} ends at {first.before.end_ms:g} ms. "
        f"{count} collision{'' if count == 1 else 's'}; both operations of each are marked."
    )


def _table(paper: OnPaper, without: str) -> Table:
    held: dict[SlotWork, list[str]] = {}
    for wait in paper.waits:
        left_out = " (left out)" if wait.edge == without else ""
        held.setdefault(wait.after, []).append(f"{wait.edge}: {wait.before}{left_out}")
    rows = [
        [
            RANKS[work.side].partition("\n")[0],
            work.stream,
            str(work),
            f"{work.start_ms:g}",
            f"{work.end_ms:g}",
            ", ".join(held.get(work, ["-"])),
        ]
        for work in sorted(
            paper.works.values(), key=lambda work: (list(STREAMS).index(work.name), work.chunk)
        )
    ]
    head = ["rank", "stream", "operation", "from, ms", "to, ms", "waits for"]
    return Table(head, rows, above="the rings on paper; made-up times, nothing was recorded")


def _draw(paper: OnPaper, without: str) -> Figure:
    rows = {place: row for row, place in enumerate(dict.fromkeys(_place(work) for work in _sorted(paper)))}
    length = max(work.end_ms for work in paper.works.values())
    inches = WIDTH - MARGINS[0] - MARGINS[1]
    figure, (axes,) = style.stacked([len(rows) * ROW], WIDTH, MARGINS)
    axes.set_xlim(-0.004 * length, length * 1.01)
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_yticks(list(rows.values()), [stream for _, stream in rows], fontsize=11)
    place = "one slot" if paper.slots == 1 else f"chunk k is in slot k mod {paper.slots}"
    axes.set_xlabel(f"made-up milliseconds; {place}", fontsize=10)
    style.open_frame(axes)
    title = f"without the edge {without}" if without else "every wait in its place"
    axes.set_title(
        f"On paper, not recorded: {title}. A row is a stream.{_short(paper)}", loc="left", fontsize=12
    )
    torn = {id(work) for wait in paper.torn for work in (wait.before, wait.after)}
    for work in paper.works.values():
        is_torn = id(work) in torn
        _box(axes, work, rows[_place(work)], inches / length, slots=paper.slots, torn=is_torn)
    for wait in paper.waits:
        _arrow(axes, wait, rows, missing=wait.edge == without)
    for chunk in _transfers(paper):
        _transfer(axes, paper.works["send", chunk], rows)
    for side in (SENDER, RECEIVER):
        of_side = [row for (owner, _), row in rows.items() if owner == side]
        if of_side:
            look: style.Style = {"va": "center", "fontsize": 11, "fontweight": "bold"}
            style.beside(axes, style.margin(axes), (of_side[0] + of_side[-1]) / 2, RANKS[side], **look)
    if len({side for side, _ in rows}) > 1:
        axes.axhline(1.5, color=style.LINE, linewidth=1.0)
    _legend(figure, paper, without)
    return figure


def _short(paper: OnPaper) -> str:
    """Return what the short words in boxes mean, as of the first chunk that has them."""
    if not any(work.name == "broadcast" for work in paper.works.values()):
        return ""
    slot = ", s1: slot 1" if paper.slots > 1 else ""
    receive = "r1: receive chunk 1, " * bool(paper.torn)
    return f"\nb1: broadcast chunk 1, {receive}t1: take chunk 1{slot}"


def _sorted(paper: OnPaper) -> list[SlotWork]:
    return sorted(paper.works.values(), key=lambda work: list(STREAMS).index(work.name))


def _place(work: SlotWork) -> tuple[str, str]:
    return work.side, work.stream


def _box(axes: Axes, work: SlotWork, row: int, inches_per_ms: float, *, slots: int, torn: bool) -> None:
    slot, short = work.chunk % slots, f"{SHORT[work.name]}{work.chunk}"
    words = [str(work), short]
    if slots > 1:
        words = [f"{work}\nslot {slot}", f"{short}\nslot {slot}", f"{short}\ns{slot}"]
    shade = SHADES[slot % len(SHADES)]
    if work.name == OF_NO_SLOT:
        words, shade = [str(work), short], "white"
    span = work.start_ms, work.end_ms, row
    box(axes, span, words, inches_per_ms, torn=torn, gid=str(work), shade=shade)


def _arrow(axes: Axes, wait: RingWait, rows: dict[tuple[str, str], int], *, missing: bool) -> None:
    tail = wait.before.end_ms, rows[_place(wait.before)]
    head = wait.after.start_ms, rows[_place(wait.after)]
    gid = f"{f'{MISSING} ' * missing}edge {wait.edge} {wait.after.chunk}"
    dashed, harmless = EDGES[wait.edge][2], not wait.missed
    wait_arrow(axes, tail, head, gid=gid, dashed=dashed, missing=missing, harmless=harmless)


def _transfers(paper: OnPaper) -> list[int]:
    """Chunks of which both ends are shown."""
    return [chunk for name, chunk in paper.works if name == "send" and ("receive", chunk) in paper.works]


def _transfer(axes: Axes, send: SlotWork, rows: dict[tuple[str, str], int]) -> None:
    at_ms, row = (send.start_ms + send.end_ms) / 2, rows[_place(send)]
    ends = [row + HIGH / 2, row + 1 - HIGH / 2]
    axes.plot([at_ms, at_ms], ends, gid=f"transfer {send.chunk}", **TRANSFER)


def _legend(figure: Figure, paper: OnPaper, without: str) -> None:
    shown = [edge for edge in EDGES if edge != without and any(wait.edge == edge for wait in paper.waits)]
    keys: list[Artist] = []
    for text, gives_back in (("the reader waits for full", False), ("the writer waits for empty", True)):
        if names := [edge for edge in shown if EDGES[edge][2] == gives_back]:
            look: style.Style = {"color": style.DARK if gives_back else "black", "linewidth": 2}
            dashes = "dashed" if gives_back else "solid"
            keys.append(style.line_key(f"{text} ({', '.join(names)})", linestyle=dashes, **look))
    if without:
        look = {"color": style.ALARM, "linestyle": "dashed", "linewidth": 2.4}
        keys.append(style.line_key(f"{MISSING} ({without})", **look))
    if _transfers(paper):
        keys.append(style.line_key("one transfer: a send and its receive", **TRANSFER))
    if paper.torn:
        frame: style.Style = {"facecolor": "white", "edgecolor": style.BAD, "linewidth": 3.0}
        keys.append(style.patch_key(TORN, **frame))
    style.legend_below(figure, keys, ncols=2 if len(keys) < 5 else 3, fontsize=10)
