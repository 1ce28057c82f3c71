"""Calls of torch.distributed: what each does to its rank and to its buffer.

Two rows for each rank. In the upper one the rank is inside a call and can do nothing else; in the lower one
the memory of the message belongs to torch. Where the lower bar is longer than the upper one, the rank is free
and its buffer is not. One message at a time in each rank: loans that overlap are drawn over each other.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppwork.errors import PlanError
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

ENTERED, RETURNED, RAISED = "enters", "returns", "raises"
_LINE = re.compile(rf"^@(\d+) ({ENTERED}|{RETURNED}|{RAISED}) (\S+) (.+)$", re.MULTILINE)
TOUCHES = ("overwrite", "read")
"""Names of what a program does itself to the memory of a message; every other name is a call of torch."""
WIDTH, MARGINS, ROW = 11.0, (1.75, 0.35, 0.5, 1.05), 0.5
"""Of the figure, as ``style.stacked`` takes them, and of a row, in inches."""
AXIS = WIDTH - MARGINS[0] - MARGINS[1]
"""Length of the time axis, in inches."""
ROWS = ("in the call", "buffer lent")


@dataclass(frozen=True)
class Call:
    """One call of one rank, about one message.

    Attributes:
        name: Such as ``send``, ``wait``, or one of ``TOUCHES``.
        message: Which message it is about, such as ``16 MB``.
        entered_ns: On the machine's clock.
        ended_ns: When it came back or raised; ``None`` if the rank ended inside it.
        raised: Whether it ended with an exception.
    """

    name: str
    message: str
    entered_ns: int
    ended_ns: int | None = None
    raised: bool = False


Calls = Mapping[int, tuple[Call, ...]]
"""By rank, in the order in which it entered them."""


@contextmanager
def inside(name: str, message: str) -> Iterator[None]:
    """Print when the body is entered and left; for the ranks of a program of one's own.

    Args:
        name: Of the call in the body, in one word, such as ``send``.
        message: Which message it is about.
    """
    _say(ENTERED, name, message)
    try:
        yield
    except BaseException:
        _say(RAISED, name, message)
        raise
    _say(RETURNED, name, message)


def _say(what: str, name: str, message: str) -> None:
    # One write: the lines of two threads must not end up in each other.
    sys.stdout.write(f"@{time.monotonic_ns()} {what} {name} {message}\n")
    sys.stdout.flush()


def calls_of(printed: Mapping[int, str]) -> Calls:
    """Read what ranks printed back, in the order in which each of them entered its calls.

    Args:
        printed: What each rank wrote to its standard output; other lines are passed over.
    """
    return {rank: _calls(text) for rank, text in printed.items()}


def _calls(text: str) -> tuple[Call, ...]:
    calls: dict[int, Call] = {}
    for number, (at, what, name, message) in enumerate(_LINE.findall(text)):
        if what == ENTERED:
            calls[number] = Call(name, message, int(at))
            continue
        opened = [k for k, c in calls.items() if (c.name, c.message, c.ended_ns) == (name, message, None)]
        if opened:
            calls[opened[-1]] = Call(name, message, calls[opened[-1]].entered_ns, int(at), what == RAISED)
    return tuple(calls.values())


def held_ns(calls: tuple[Call, ...], message: str) -> tuple[int, int | None]:
    """Return from when to when the memory of a message was torch's: first call entered, last call ended.

    Raises:
        LookupError: No call of torch is about this message.
    """
    of_torch = [call for call in calls if call.message == message and call.name not in TOUCHES]
    if not of_torch:
        raise LookupError(f"there is no call about {message!r}")
    return of_torch[0].entered_ns, of_torch[-1].ended_ns


def moments(calls: Calls, *, title: str = "") -> Picture:
    """Return the calls of every rank, in milliseconds from the first one.

    Args:
        calls: By rank, from ``calls_of``.
        title: Name of the program.

    Raises:
        PlanError: No rank made a call.
    """
    _window(calls)
    return Picture(_finding(calls), lambda: _draw(calls, title), _table(calls))


def _draw(calls: Calls, title: str) -> Figure:
    start, end = _window(calls)
    rows = 2 * len(calls)
    paper, (axes,) = style.stacked([rows * ROW], WIDTH, MARGINS)
    axes.set_title(title, loc="left", fontsize=13, fontweight="bold")
    length = (end - start) / 1e6
    axes.set_xlim(-0.01 * length, 1.03 * length)
    axes.set_ylim(rows - 0.5, -0.5)
    axes.set_xlabel("milliseconds from the first call", fontsize=11)
    axes.tick_params(axis="x", labelsize=11)
    axes.set_yticks(range(rows), ROWS * len(calls), fontsize=11)
    style.open_frame(axes)
    for number, (rank, of_rank) in enumerate(sorted(calls.items())):
        if number:
            axes.axhline(2 * number - 0.5, color=style.LINE, linewidth=0.8)
        bold: style.Style = {"va": "center", "fontsize": 12, "fontweight": "bold"}
        style.beside(axes, style.margin(axes), 2 * number + 0.5, f"rank {rank}", **bold)
        _rank(axes, 2 * number, of_rank, _styles(calls), start, end)
    _legend(paper, calls)
    return paper


def _window(calls: Calls) -> tuple[int, int]:
    every = [call for of_rank in calls.values() for call in of_rank]
    if not every:
        raise PlanError("There is no call to draw.", check_first="did the ranks print any, with `inside`?")
    ends = [call.entered_ns if call.ended_ns is None else call.ended_ns for call in every]
    return min(call.entered_ns for call in every), max(ends)


def _styles(calls: Calls) -> dict[str, style.Style]:
    """Return colour and hatch of each message, in the order of the first rank that has it."""
    messages = dict.fromkeys(call.message for _, of_rank in sorted(calls.items()) for call in of_rank)
    return {message: style.solid(number) for number, message in enumerate(messages)}


def _rank(
    axes: Axes, row: int, calls: tuple[Call, ...], styles: Mapping[str, style.Style], start: int, end: int
) -> None:
    def ms(moment_ns: int | None) -> float:
        return ((end if moment_ns is None else moment_ns) - start) / 1e6

    of_torch = [call for call in calls if call.name not in TOUCHES]
    lent = {message: held_ns(calls, message) for message in dict.fromkeys(call.message for call in of_torch)}
    style.worded_bars(
        axes, AXIS, row, [(ms(c.entered_ns), ms(c.ended_ns), c.name, styles[c.message]) for c in of_torch]
    )
    style.worded_bars(
        axes, AXIS, row + 1, [(ms(since), ms(until), m, styles[m]) for m, (since, until) in lent.items()]
    )
    for call in calls:
        if call.raised:
            axes.plot([ms(call.ended_ns)], [row], zorder=6, clip_on=False, **_mark("P"))
        if call.name in TOUCHES:
            axes.plot([ms(call.entered_ns)], [row + 1], zorder=6, clip_on=False, **_mark("X"))


def _mark(shape: str) -> style.Style:
    return style.mark(shape, 13, style.BAD, edge=1.2)


def _legend(paper: Figure, calls: Calls) -> None:
    every = [call for of_rank in calls.values() for call in of_rank]
    handles: list[Artist] = [style.patch_key(message, **look) for message, look in _styles(calls).items()]
    if touches := sorted({call.name for call in every if call.name in TOUCHES}):
        handles.append(style.line_key(" / ".join(touches), **_mark("X")))
    if any(call.raised for call in every):
        handles.append(style.line_key("raises", **_mark("P")))
    style.legend_below(paper, handles, handleheight=1.2)


def _table(calls: Calls) -> Table:
    """Return the calls as a table, in milliseconds: a line for each call, in the order of entering."""
    start, _ = _window(calls)
    every = [(call.entered_ns, rank, call) for rank, of_rank in calls.items() for call in of_rank]
    rows = []
    for entered_ns, rank, call in sorted(every, key=lambda item: item[:2]):
        back, took = "never", "-"
        if call.ended_ns is not None:
            back = f"{(call.ended_ns - start) / 1e6:.2f}"
            took = f"{(call.ended_ns - entered_ns) / 1e6:.2f}"
        entered = f"{(entered_ns - start) / 1e6:.2f}"
        rows.append([str(rank), call.name, call.message, entered, back, took, "raised" * call.raised])
    return Table(["rank", "call", "message", "entered ms", "back ms", "duration ms", ""], rows)


def _finding(calls: Calls) -> str:
    """State in one sentence for each rank how long each buffer was lent, and how much of that in a call."""
    _, end = _window(calls)
    sentences = []
    for rank, of_rank in sorted(calls.items()):
        parts = []
        for message in dict.fromkeys(call.message for call in of_rank if call.name not in TOUCHES):
            since, ended_ns = held_ns(of_rank, message)
            until = end if ended_ns is None else ended_ns
            about = [call for call in of_rank if call.message == message]
            inside = sum((c.ended_ns or end) - c.entered_ns for c in about if c.name not in TOUCHES)
            lent_ms, inside_ms = (until - since) / 1e6, inside / 1e6
            part = f"{message}: buffer lent for {lent_ms:.0f} ms, {inside_ms:.0f} ms of it in calls"
            touches = [call.name for call in about if call.name in TOUCHES and call.entered_ns < until]
            part += "".join(f", {name} meanwhile" for name in touches)
            part += ", raised" if any(call.raised for call in about) else ""
            parts.append(part)
        sentences.append(f"Rank {rank}: {'; '.join(parts)}.")
    return " ".join(sentences)
