"""The timeline: one lane per rank, helper thread and CUDA stream, chunks by colour and hatch.

Work is solid, transfers are thin, waiting is pale, and the empty frame of a compute lane is its idle time. On
CUDA the streams stand below the threads: there work is the device's and its launch on a thread is thin, a
transfer waits before it moves (``timeline.streams``), and an arrow is a wait of one stream for another. Its
table has a line per chunk; its sentence says the period, the leader's share, and how the stages overlap.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.timeline_words import rate_words, stream_tables, timeline_finding, timeline_table
from ppwork.plan import Plan
from ppwork.protocol.topology import STAGE0_RANK, Topology
from ppwork.records.run import Run, as_run
from ppwork.records.spans import DEVICE_LANE, Instant, Span
from ppwork.timeline.chunks import (
    TRANSFER_AT,
    TRANSFERS,
    WAITS,
    WORK,
    EntriesByRank,
    Window,
    aligned,
    busy,
    calls_with_chunks,
    is_of_chunk,
    lanes_of,
    spans_by_chunk,
    spans_of,
    total_ns,
    window_of,
)
from ppwork.timeline.measures import dropped_chunks, flushes
from ppwork.timeline.streams import Edge, edges, transfers
from ppwork.timeline.trace import chrome_trace

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

LETTERS = {"encode": "e", "decode": "d"}
"""Where a box of rank 0 has no room for the word: its number alone would not say which half it is."""
MARKERS = {"envelope.send": "o", "mesh.broadcast": "D", "result.send": "s", "emit": "*", "drop": "X"}
"""Commitment points, the emission, and what stands in its place after a flush."""
NUMBERED = ("drop", "envelope.send")
"""Marks that have the number of their chunk beside them: no box of that chunk is near."""
SAID = {
    "envelope.send": "leaves rank 0 (envelope.send)",
    "mesh.broadcast": "goes into the mesh (mesh.broadcast)",
    "result.send": "leaves the mesh (result.send)",
}
"""Commitment points in the legend."""
WIDTH, MARGINS = 12.0, (2.0, 1.05, 0.5, 1.6)
"""Of the figure, in inches, as ``style.stacked`` takes them."""
LANE, LANE_OF_TWO = 0.33, 0.28
"""Height of a lane, and of one where two runs are drawn, in inches."""
CHAR, CLOSE, TIGHT, SEEN = 0.094, 0.077, 0.02, 0.03
"""Widths of a letter of the smallest text, of a number, of the room beside it, of what is seen, in inches."""
LINE = 0.14
"""Height of a letter of the smallest text, in inches."""
FLUSH: style.Style = {"color": style.DARK, "linewidth": 1.2, "linestyle": (0, (5, 3))}
"""Of the moment from which on what was in flight is stale."""
ARROW: style.Style = {"color": "black", "linewidth": 0.8, "mutation_scale": 7, "zorder": 7}
"""Of a wait of one stream for another."""
IDLE: style.Style = {"facecolor": "white", "edgecolor": style.LINE, "linestyle": ":", "linewidth": 1.0}
"""Of a compute lane without work: grey is the work of a program, here and elsewhere."""
CHECK: style.Style = {"facecolor": style.WORK_STEPS["preflight"][0], "hatch": ""}
HEIGHTS = {**dict.fromkeys(WORK, 0.76), **dict.fromkeys(TRANSFERS, 0.3), **dict.fromkeys(WAITS, 0.6)}


def timeline(
    run: Run | Path | str | EntriesByRank,
    *,
    title: str = "",
    compare: Run | Path | str | EntriesByRank | None = None,
    compare_title: str = "",
    first_chunk: int | None = None,
    last_chunk: int | None = None,
    depths: tuple[int, int] | None = None,
    idle: bool = True,
    only_work: bool = False,
) -> Picture:
    """Return what every rank and lane did, in milliseconds from the first shown span.

    Two runs stand one above the other on one time axis; each starts with its first shown span. Both show the
    same chunks where they can: those asked for, else an ordinary stretch of the first run.

    Args:
        run: A run, its folder, or the entries of every rank.
        title: Name of the run; the shown chunks are added.
        compare: A second run, drawn below the first.
        compare_title: Its name.
        first_chunk: First chunk to show; default: an ordinary stretch of 5 chunks, or all of a short run, and
            all of a run in the table.
        last_chunk: Last chunk to show, included.
        depths: The ``in_flight_depth`` of both; default: of their plans, and 1 of mere entries.
        idle: Whether the idle part of the shown time stands beside each compute lane. The sentence counts
            from one emission to another, which is another window.
        only_work: Whether the picture of a single run leaves out the lanes that only send and receive, the
            moments at which a chunk goes on, and the checks before sending.

    Raises:
        PlanError: There is nothing to draw, or there are no such chunks.
    """
    chunks, entries = (first_chunk, last_chunk), _entries(run)
    depth, depth_beside = depths or (_depth(run), 1 if compare is None else _depth(compare))
    window = window_of(entries, *chunks)
    if compare is None:
        finding = timeline_finding(entries, first_chunk=first_chunk, last_chunk=last_chunk, depth=depth)
        table = timeline_table([(title, entries, depth)], *chunks)
        shown = _of_work(window) if only_work else window
        return Picture(finding, lambda: _draw([shown], [title], [""], idle=idle), table)
    others = _entries(compare)
    same = {window.first, window.last} <= spans_by_chunk(others).keys()
    windows = [window, window_of(others, *((window.first, window.last) if same else chunks))]
    runs = [(title or "first", entries, depth), (compare_title or "second", others, depth_beside)]
    findings = [
        timeline_finding(each, first_chunk=first_chunk, last_chunk=last_chunk, depth=of_each)
        for _, each, of_each in runs
    ]
    titles = [name for name, _, _ in runs]
    finding = " ".join(f"{name[:1].upper()}{name[1:]}: {f}" for name, f in zip(titles, findings, strict=True))
    # The same chunks take longer with depth, as each waits its turn: what is gained is the time between two.
    rates = [rate_words(each, of_each) for _, each, of_each in runs]
    return Picture(finding, lambda: _draw(windows, titles, rates, idle=idle), timeline_table(runs, *chunks))


def _of_work(window: Window) -> Window:
    """Return the same time without the lanes that have no work, the commitment points and the checks."""
    aside = {*TRANSFER_AT, "preflight"}
    at_work = {(rank, e.lane) for rank, entries in window.ranks.items() for e in spans_of(entries, WORK)}
    ranks = {
        rank: [e for e in entries if (rank, e.lane) in at_work and e.name not in aside]
        for rank, entries in window.ranks.items()
    }
    return Window(ranks, window.first, window.last, window.start_ns, window.end_ns, lanes_of(ranks))


def timeline_files(
    plan: Plan,
    entries: EntriesByRank,
    label: str,
    *,
    beside: tuple[EntriesByRank, str, int] | None = None,
    chunks: tuple[int | None, int | None] = (None, None),
) -> dict[str, bytes]:
    """Return what people look at of a run or simulation, by file name: picture, text table, Perfetto trace.

    Args:
        plan: Of the run or simulation.
        entries: Of every rank.
        label: The picture's title.
        beside: Entries, label and depth of a second run, for a picture of both on one axis.
        chunks: First and last chunk of the picture, both included; default: an ordinary stretch.
    """
    first, last = chunks
    others, other_label, other_depth = beside or (None, "", 1)
    depths = plan.in_flight_depth, other_depth
    # The picture shows a window; table and finding are those of the whole run.
    whole = timeline(entries, depths=depths)
    finding = f"{label}: {whole.finding}"
    if others is not None:
        finding += f"\n{other_label}: {timeline(others, depths=(other_depth, 1)).finding}"
    both = partial(timeline, entries, compare=others, title=label, compare_title=other_label, depths=depths)
    tables = [both().table, *stream_tables(aligned(entries))]
    window = both(first_chunk=first, last_chunk=last)
    return {
        "timeline.png" if others is None else "timeline-compare.png": Picture(finding, window.draw).png(),
        "timeline.txt": "\n\n".join([*map(str, tables), f"{finding}\n"]).encode(),
        "trace.json": chrome_trace(entries, plan),
    }


def _entries(run: Run | Path | str | EntriesByRank) -> EntriesByRank:
    return run if isinstance(run, Mapping) else as_run(run).entries_by_rank


def _depth(run: Run | Path | str | EntriesByRank) -> int:
    return 1 if isinstance(run, Mapping) else as_run(run).plan.in_flight_depth


def _draw(windows: list[Window], titles: list[str], rates: list[str], *, idle: bool) -> Figure:
    pitch = LANE if len(windows) == 1 else LANE_OF_TWO
    paper, every = style.stacked([window.height * pitch for window in windows], WIDTH, MARGINS)
    length = max(window.length_ms for window in windows) * 1.01
    inches_per_ms = (WIDTH - MARGINS[0] - MARGINS[1]) / length
    for axes, window, title, rate in zip(every, windows, titles, rates, strict=True):
        _run(axes, window, inches_per_ms, idle=idle)
        chunks = f"chunks {window.first} to {window.last}"
        chunks = (chunks if window.first < window.last else f"chunk {window.first}") + rate
        axes.set_title(f"{title}: {chunks}" if title else chunks.capitalize(), loc="left", fontsize=13)
        axes.set_xlim(0, length)
        axes.tick_params(axis="x", labelsize=12, labelbottom=axes is every[-1])
    every[-1].set_xlabel("time from the first shown span, ms", fontsize=12)
    _legends(paper, windows, SEEN / inches_per_ms)
    return paper


def _run(axes: Axes, window: Window, inches_per_ms: float, *, idle: bool) -> None:
    calls, dropped = calls_with_chunks(window.ranks), dropped_chunks(window.ranks.get(STAGE0_RANK, ()))
    moves = {(half.rank, half.span): half.moves_ns for half in transfers(window.ranks)}
    for (rank, lane), row in window.rows.items():
        entries = [entry for entry in window.ranks[rank] if entry.lane == lane]
        launched = {e.name for e in window.ranks[rank] if e.lane == DEVICE_LANE and lane != DEVICE_LANE}
        if not launched and any(entry.name in WORK for entry in entries):
            style.bar(axes, 0, window.length_ms, row, 0.92, zorder=0, **IDLE)
            if idle:
                work_ns = total_ns(busy(entries, WORK, window.start_ns, window.end_ns))
                share = f"idle {1 - work_ns / (window.end_ns - window.start_ns):.0%}"
                style.beside(axes, 1.01, row, share, va="center", fontsize=12)
            if idle and row == 0:
                style.beside(axes, 1.01, -0.85, "of this time", va="center", fontsize=11)
        for entry in entries:
            of_chunk = is_of_chunk(entry, calls)
            if isinstance(entry, Instant):
                if of_chunk and entry.name in MARKERS and window.start_ns <= entry.at_ns <= window.end_ns:
                    _point(axes, window, rank, entry)
            elif entry.chunk_index >= 0 and window.shows(entry):
                for part in _parts(entry, moves.get((rank, entry)), launched):
                    _span(axes, window, row, part, inches_per_ms, dropped, of_chunk=of_chunk)
    for edge in edges(window.ranks):
        _edge(axes, window, edge)
    for at_ns in _flushes(window).values():
        axes.axvline(window.at(at_ns), zorder=1, gid="flush", **FLUSH)
    axes.set_ylim(window.height - 0.5, -0.5)
    axes.set_yticks(list(window.rows.values()), [lane for _, lane in window.lanes], fontsize=11)
    style.open_frame(axes)
    topology = Topology(max(window.ranks))
    for rank in sorted({rank for rank, _ in window.lanes}):
        rows = [row for (owner, _), row in window.rows.items() if owner == rank]
        look: style.Style = {"va": "center", "fontsize": 12, "fontweight": "bold"}
        text = f"rank {rank}\n{topology.role(rank)}"
        style.beside(axes, style.margin(axes), (rows[0] + rows[-1]) / 2, text, **look)


def _parts(span: Span, moves_ns: int | None, launched: Collection[str]) -> list[Span]:
    """Return a span as it is drawn: a stream's transfer waits, then moves; a launch is no work."""
    if moves_ns is not None:
        waits = msgspec.structs.replace(span, name="receive", end_ns=moves_ns)
        moves = msgspec.structs.replace(span, name="send", start_ns=moves_ns)
        return [waits, moves] if moves_ns > span.start_ns else [moves]
    return [msgspec.structs.replace(span, name="launch") if span.name in launched else span]


def _edge(axes: Axes, window: Window, edge: Edge) -> None:
    """Draw a wait of one stream for another, where both its spans are shown."""
    if edge.before.end_ns < window.start_ns or edge.after.start_ns > window.end_ns:
        return
    first, then = (window.rows[edge.rank, span.lane] for span in (edge.before, edge.after))
    down = 1 if first < then else -1  # from edge to edge of the boxes, not across their words
    ends = ((edge.before, first, down), (edge.after, then, -down))
    away = [row + way * (HEIGHTS[span.name] if span.name in WORK else 0.3) / 2 for span, row, way in ends]
    tail, head = (window.at(edge.before.end_ns), away[0]), (window.at(edge.after.start_ns), away[1])
    style.arrow(axes, tail, head, gid=f"chunk{edge.after.chunk_index}.edge", **ARROW)


def _span_style(span: Span, *, of_chunk: bool) -> style.Style:
    if span.name not in WAITS:
        look = style.solid(span.chunk_index, linewidth=0.6)
        look |= CHECK if span.name == "preflight" else {}
        return look if of_chunk else look | {"facecolor": style.GREY, "hatch": ""}
    # No tint of its chunk: eight of them are too pale to be told apart, and its number stands in the box.
    return {"facecolor": style.FAINT, "edgecolor": style.LINE, "linewidth": 0.6}


def _span(
    axes: Axes,
    window: Window,
    row: float,
    span: Span,
    inches_per_ms: float,
    dropped: Collection[int],
    *,
    of_chunk: bool,
) -> None:
    waits, works = span.name in WAITS, span.name in WORK
    start, end = window.at(span.start_ns), window.at(span.end_ns)
    gid = f"chunk{span.chunk_index}.{span.name}" if of_chunk else f"control.{span.name}"
    look = _span_style(span, of_chunk=of_chunk)
    style.bar(axes, start, end, row, HEIGHTS.get(span.name, 0.3), zorder=2 if waits else 3, gid=gid, **look)
    if not of_chunk or not (works or waits):
        return
    wide = (end - start) * inches_per_ms
    number, short = span.chunk_index, f"{LETTERS.get(span.name, '')}{span.chunk_index}"
    words = [f"waits for {number}", f"for {number}"] if waits else [f"{span.name} {number}", short]
    if span.name == "generate" and span.chunk_index in dropped:
        words[:1] = [f"{short}, made, then dropped", f"{short}, dropped", *words[:1]]
    text = next((word for word in words if len(word) * CHAR < wide - 0.08), "")
    letters: style.Style = {"fontsize": 10, "zorder": 5, "color": "black" if works else style.DARK}
    if text:
        letters["bbox"] = style.white_box(0.12) if works else None
    elif works and len(short) * CLOSE < wide - TIGHT:
        text, letters["bbox"] = short, style.white_box(0.0)
    elif works and wide > LINE:
        text, letters["bbox"], letters["rotation"] = short, style.white_box(0.0), 90
    if text:
        axes.text((start + end) / 2, row, text, **letters, **style.CENTRED)


def _point(axes: Axes, window: Window, rank: int, instant: Instant) -> None:
    _, lane, _ = TRANSFER_AT.get(instant.name, (rank, instant.lane, ""))  # on the lane of its transfer
    row = window.rows[(rank, lane) if (rank, lane) in window.rows else (rank, instant.lane)]
    x, y = window.at(instant.at_ns), row - (0.5 if instant.name == "emit" else 0.38)
    gid = f"chunk{instant.chunk_index}.{instant.name}"
    axes.plot(x, y, gid=gid, zorder=6, clip_on=False, **_marker(instant.name))
    if instant.name in NUMBERED:
        look: style.Style = {"textcoords": "offset points", "fontsize": 11, "va": "center"}
        if instant.name == "drop":  # the next encode stands on its right
            look |= {"ha": "right", "bbox": style.white_box(0.05)}
        at = (-6 if instant.name == "drop" else 6, -1)
        word = "drop " if instant.name == "drop" else ""
        axes.annotate(f"{word}{instant.chunk_index}", (x, y), xytext=at, **look)


def _flushes(window: Window) -> dict[int, int]:
    """Return the flushes in the shown time: their chunks, and when the encode of those began."""
    return {k: at for k, at in flushes(window.ranks).items() if window.start_ns <= at <= window.end_ns}


def _marker(name: str) -> style.Style:
    return style.mark(MARKERS[name], 11 if name == "emit" else 7)


def _legends(paper: Figure, windows: list[Window], seen_ms: float) -> None:
    """Put below it what the picture has; checks before a send only if one is wide enough to be seen."""
    names = {entry.name for window in windows for entries in window.ranks.values() for entry in entries}
    words = {text.get_text() for axes in paper.axes for text in axes.texts}
    short = any(word[:1] in LETTERS.values() and word[1:].isdigit() for word in words)
    checks = [
        span
        for window in windows
        for span in window.ranks[STAGE0_RANK]
        if isinstance(span, Span) and span.name == "preflight" and span.end_ns - span.start_ns > seen_ms * 1e6
    ]
    on_cuda = any(lane == DEVICE_LANE for window in windows for _, lane in window.lanes)
    pale = {"facecolor": style.FAINT, "edgecolor": style.LINE}
    moving, waiting = ("transfer, launch", "waiting") if on_cuda else ("transfer", "waiting to receive")
    kinds: list[Artist] = [
        style.patch_key(f"work{' (e encode, d decode)' * short}", facecolor=style.MEDIUM, edgecolor="black"),
        *([style.line_key(moving, color=style.DARK, linewidth=4)] if names & {*TRANSFERS} else []),
        *([style.patch_key(waiting, **pale)] if names & {*WAITS} else []),
        style.patch_key("idle", **IDLE),
        *(
            [style.patch_key("check before sending (preflight)", edgecolor="black", **CHECK)]
            if checks
            else []
        ),
        *([style.line_key("edge", color="black", linewidth=0.8, marker=">")] if on_cuda else []),
    ]
    marks = [style.line_key(SAID.get(name, name), **_marker(name)) for name in MARKERS if name in names]
    marks += [
        style.line_key(f"flush, with chunk {k}", **FLUSH)
        for k in dict.fromkeys(k for window in windows for k in _flushes(window))
    ]
    visible = sorted({k for window in windows for k in window.visible_chunks()})[:10]
    chunks = [style.patch_key(f"chunk {k}", **style.solid(k, linewidth=0.6)) for k in visible]
    look = {"ncols": 10, "fontsize": 10, "columnspacing": 1.2, "handletextpad": 0.5}
    style.legend_below(paper, kinds, inches=0.64, **look)
    style.legend_below(paper, marks, inches=0.34, **look)
    style.legend_below(paper, chunks, inches=0.04, **look)
