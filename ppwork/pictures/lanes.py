"""Lanes that move while a run goes: what each rank did last, as a small SVG that a widget shows.

No matplotlib: a frame takes a fraction of a millisecond, several times a second.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass

from ppwork.pictures import style

WIDE, ROW, LEFT, RIGHT, FOOT = 760, 24, 64, 8, 18
"""Of the drawing, in pixels: its width, a row, the margins, and the line of the scale."""
CHAR = 6.6
"""Width of a character of a bar's word, in pixels."""
LAST = 12
"""Bars of the busiest rank that the window has room for."""
SHORTEST_S, LONGEST_S = 0.125, 32.0
"""Of the window."""


@dataclass(frozen=True)
class Bar:
    """Something that a rank did, or is in (``end_ns`` is ``None``); times are monotonic, of this host."""

    rank: int
    start_ns: int
    end_ns: int | None
    word: str
    colour: str


def moving_lanes(bars: Sequence[Bar], ranks: int, now_ns: int) -> str:
    """Return the last of the bars as SVG, the present at its right edge; nothing while there are none.

    The window is a power of two of seconds, so that it does not breathe with every bar.
    """
    if not bars:
        return ""
    window_ns = _window_ns(bars, ranks, now_ns)
    tall, wide = ranks * ROW + FOOT, WIDE - LEFT - RIGHT

    def across(at_ns: int) -> float:
        return LEFT + wide * min(1.0, max(0.0, 1 - (now_ns - at_ns) / window_ns))

    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDE}" height="{tall}" viewBox="0 0 {WIDE} {tall}" '
        f'role="img" aria-label="{html.escape(_said(bars), quote=True)}" class="ppwork-lanes" '
        'font-family="sans-serif" font-size="11">'
    ]
    for rank in range(ranks):
        y = rank * ROW
        parts.append(f'<text x="2" y="{y + 16}">rank {rank}</text>')
        parts.append(f'<rect x="{LEFT}" y="{y + 3}" width="{wide}" height="{ROW - 6}" fill="{style.PALE}"/>')
    for bar in bars:
        end_ns = now_ns if bar.end_ns is None else bar.end_ns
        if end_ns < now_ns - window_ns or not 0 <= bar.rank < ranks:
            continue
        x, y = across(bar.start_ns), bar.rank * ROW + 3
        long = max(1.5, across(end_ns) - x)
        edge = f' stroke="{style.BAD}" stroke-width="1.5"' if bar.end_ns is None else ' stroke="white"'
        word = html.escape(bar.word)
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{long:.1f}" height="{ROW - 6}" fill="{bar.colour}"{edge}>'
            f"<title>{word}</title></rect>"
        )
        if len(bar.word) * CHAR + 4 < long:
            look = 'fill="black" stroke="white" stroke-width="3" paint-order="stroke" text-anchor="middle"'
            parts.append(f'<text x="{x + long / 2:.1f}" y="{y + 13}" {look}>{word}</text>')
    foot = ranks * ROW + 13
    seconds = window_ns / 1e9
    parts.append(f'<text x="{LEFT}" y="{foot}">{seconds:g} s ago</text>')
    parts.append(f'<text x="{WIDE - RIGHT}" y="{foot}" text-anchor="end">now</text></svg>')
    return "".join(parts)


def _window_ns(bars: Sequence[Bar], ranks: int, now_ns: int) -> int:
    starts = [sorted(bar.start_ns for bar in bars if bar.rank == rank)[-LAST:] for rank in range(ranks)]
    full = [each[0] for each in starts if len(each) == LAST]
    first_ns = max(full, default=min((each[0] for each in starts if each), default=now_ns))
    needed_s = min(LONGEST_S, max(SHORTEST_S, (now_ns - first_ns) / 1e9))
    return int(2 ** math.ceil(math.log2(needed_s)) * 1e9)


def _said(bars: Sequence[Bar]) -> str:
    last = {bar.rank: bar for bar in sorted(bars, key=lambda bar: bar.start_ns)}
    return "; ".join(
        f"rank {rank} {'in' if bar.end_ns is None else 'after'} {bar.word}"
        for rank, bar in sorted(last.items())
    )
