"""The row of a rank's lent buffers in the figure of a program's calls."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ppwork.pictures import style
from ppwork.records.calls import ANY
from ppwork.timeline.meetings import BufferLoan

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORD, SMALL = 11, 9
"""Sizes of a word in its bar, and of one above it, in points."""
DROPPED, DROPPED_MORE = "handle let go, message given up", "{} handles let go, messages given up"
"""Beside a bar: of one handle, and of several with those before it that had no room for theirs."""
SLOTS = 4
"""Buffers that are drawn above each other; more are counted."""
Lent = tuple[float, float, BufferLoan]
"""From when to when a buffer is lent, in milliseconds of the axis."""


def word_ms(word: str, size: float, inch: float) -> float:
    """Return the length of a word, in milliseconds of an axis that has ``inch`` of them in an inch."""
    return len(word) * style.CHAR * size / WORD * inch


def lent_row(
    axes: Axes,
    loans: Sequence[Lent],
    row: float,
    inch: float,
    whole: Callable[[float, float], tuple[float, float]],
    named: Callable[[BufferLoan], str],
) -> bool:
    """Draw loans that overlap above each other; where they are many, their number, and return that it does.

    Args:
        axes: The figure's.
        loans: Of one rank.
        row: Middle of their bars.
        inch: Milliseconds of the axis in an inch.
        whole: Returns the part of a bar that has room for a word: one side of a break.
        named: Returns what a loan is called, with its number where there are several alike.
    """
    free: list[float] = []
    placed = []
    for start, end, loan in loans:
        slot = next((n for n, until in enumerate(free) if until <= start), len(free))
        free[slot : slot + 1] = [end]
        placed.append((slot, start, end, loan))
    if len(free) > SLOTS:
        _counted(axes, [(start, end) for start, end, _ in loans], len(free), row, inch)
        return True
    low, high = axes.get_xlim()
    unsaid = 0
    height = style.TALL / max(1, len(free))
    for slot, start, end, loan in placed:
        middle = row - style.TALL / 2 + (slot + 0.5) * height
        until = max(end, start + style.NARROWEST * (high - low))
        style.bar(axes, start, until, middle, height * 0.9, zorder=3, **style.call(lent_as(loan)))
        size = WORD if len(free) == 1 else SMALL
        left, right = whole(start, until)
        room = right - left - 0.16 * inch
        word = next((w for w in (named(loan), lent_as(loan)) if word_ms(w, size, inch) < room), "")
        if word and len(free) < 3:
            box = style.white_box(0.08 if size == WORD else 0.0)
            before_a_message: style.Style = {"zorder": 6.5, "bbox": box, **style.CENTRED}
            axes.text((left + right) / 2, middle, word, fontsize=size, **before_a_message)
        if loan.wait is None and loan.dropped_ns is not None:
            beside: style.Style = {"va": "center", "fontsize": SMALL, "color": style.BAD, "zorder": 5}
            unsaid += 1
            said = DROPPED if unsaid == 1 else DROPPED_MORE.format(unsaid)
            clear = until + word_ms(said, SMALL, inch)
            others = [begun for other, begun, *_ in placed if other == slot and begun > start]
            if len(free) < 3 and clear < min([high, *others]):
                axes.text(until + 0.06 * inch, middle, said, **beside)
                unsaid = 0
    return False


def _counted(axes: Axes, spans: Sequence[tuple[float, float]], most: int, row: float, inch: float) -> None:
    for left, right in itertools.pairwise(sorted({side for span in spans for side in span})):
        number = sum(start <= left and right <= end for start, end in spans)
        height = style.TALL * number / most
        look = {"facecolor": style.MEDIUM, "edgecolor": style.DARK, "linewidth": 0.5, "zorder": 3}
        style.bar(axes, left, right, row + (style.TALL - height) / 2, height, **look)
        if number and word_ms(str(number), SMALL, inch) < right - left:
            box = style.white_box(0.05)
            axes.text(
                (left + right) / 2, row, str(number), fontsize=SMALL, zorder=5, bbox=box, **style.CENTRED
            )


def lent_as(loan: BufferLoan) -> str:
    """Return the function that lends a buffer so: of a batch what this message would be alone."""
    parts = loan.call.begun.parts
    if loan.part == ANY or loan.part >= len(parts) or not parts[loan.part].kind:
        return loan.call.name
    return f"i{parts[loan.part].kind}"
