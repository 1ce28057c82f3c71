"""What a page says of a program's own code in the figure of its calls: words in the grey, spans above, marks.

A recorder of calls sees nothing between them. Who wrote the program knows what it does there, and when, and
which of two calls are the ends of a period.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from ppwork.errors import PlanError, duration
from ppwork.pictures import style
from ppwork.pictures.lent_row import SMALL, WORD, word_ms
from ppwork.records.calls import Call
from ppwork.timeline.meetings import Meetings

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Nth = tuple[int, str, int]
"""A call: its rank, its function, and which of its calls of that, from 0."""
Work = Mapping[tuple[int, str], Callable[[int], str]]
"""By rank and function: returns what the rank does between the call before its n-th call of it and that."""
Spans = Mapping[str, tuple[Nth, Nth]]
"""By what is said of it: from the begin of one call to the begin of another."""
Marks = Mapping[str, Nth]
"""By what is said of it: the moment at which a call begins."""
TICK = 0.09
"""Half the height of a span's ends, in rows."""


class OwnCode(NamedTuple):
    """A stretch between two calls of a thread; ``call`` is the second."""

    call: Call
    start_ns: int
    word: str


class NamedMoment(NamedTuple):
    """A moment that the page gives a name: the begin of ``call``."""

    call: Call
    word: str


class NamedTime(NamedTuple):
    """A time that the page gives a name, with how long it is; it stands above the row of ``call``."""

    call: Call
    end_ns: int
    word: str


class Said(NamedTuple):
    """What a page says of a program beside its calls."""

    work: Sequence[OwnCode] = ()
    spans: Sequence[NamedTime] = ()
    marks: Sequence[NamedMoment] = ()


def own_code(met: Meetings, work: Work) -> Iterator[OwnCode]:
    """Yield the stretches that a page has a word for: none before calls to which a program did not come."""
    for (rank, name), said in work.items():
        for n, call in enumerate(_alike(met, rank, name)):
            of_rank = met.ranks[rank]
            of_thread = [c for c in of_rank.calls if c.begun.thread == call.begun.thread]
            before = of_thread[: of_thread.index(call)]
            start_ns = before[-1].end_ns if before else of_rank.head.at_ns
            if start_ns is not None and said(n):
                yield OwnCode(call, start_ns, said(n))


def spans_of(met: Meetings, spans: Spans) -> list[NamedTime]:
    """Return the spans of a page.

    Raises:
        PlanError: The program made no such call.
    """
    found = []
    for word, ends in spans.items():
        first, then = (_nth_call(met, *end) for end in ends)
        length = duration((then.start_ns - first.start_ns) / 1e9)
        found.append(NamedTime(first, then.start_ns, f"{word}: {length}"))
    return found


def marks_of(met: Meetings, marks: Marks) -> list[NamedMoment]:
    """Return the marks of a page.

    Raises:
        PlanError: The program made no such call.
    """
    return [NamedMoment(_nth_call(met, *nth), word) for word, nth in marks.items()]


def in_the_grey(axes: Axes, sides: tuple[float, float], row: float, word: str, inch: float) -> None:
    """Write a word between the two sides of a row, if there is room; ``inch`` as ``word_ms`` has it."""
    room = sides[1] - sides[0] - 0.16 * inch
    size = next((size for size in (WORD, SMALL) if word_ms(word, size, inch) < room), None)
    if size is not None:
        grey = {**style.white_box(0.05), "facecolor": style.PALE}
        axes.text(sum(sides) / 2, row, word, fontsize=size, zorder=6.5, bbox=grey, **style.CENTRED)


def bracket(axes: Axes, left: float, right: float, height: float) -> None:
    """Draw a line with two ends, at a height in rows."""
    look: style.Style = {"color": "black", "linewidth": 1.2, "zorder": 8, "gid": "span"}
    axes.plot([left, right], [height, height], **look)
    for side in (left, right):
        axes.plot([side, side], [height - TICK, height + TICK], **look)


def mark(axes: Axes, at: float, rows: tuple[float, float]) -> None:
    """Draw a dashed line on white at a moment through the rows of a rank, from the first one's top."""
    looks: tuple[style.Style, ...] = (
        {"color": "white", "linewidth": 5},
        {"color": "black", "linewidth": 2, "linestyle": "--"},
    )
    for look in looks:
        axes.plot([at, at], rows, zorder=8, gid="mark", **look)


def _alike(met: Meetings, rank: int, name: str) -> list[Call]:
    return [call for call in met.ranks[rank].calls if call.name == name] if rank in met.ranks else []


def _nth_call(met: Meetings, rank: int, name: str, number: int) -> Call:
    calls = _alike(met, rank, name)
    if number not in range(len(calls)):
        raise PlanError(
            f"There is no call number {number} of {name} on rank {rank}.",
            check_first=f"it made {len(calls)} of them, and the first is number 0",
        )
    return calls[number]
