"""The bands between the ranks of a collective in the figure of a program's calls.

Calls of a group are one call by their number alone. Between ranks that called different things under one
number the band is hatched, in the colour of what went wrong; it joins the calls themselves, without the time
in which their operations stand.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ppwork.diagnosis.causes import DEFAULT
from ppwork.diagnosis.program_waits import agree, parted
from ppwork.errors import named_ranks, ranks_by_value
from ppwork.pictures import style
from ppwork.pictures.shown_time import ShownTime
from ppwork.records.calls import Call
from ppwork.timeline.meetings import START, Endpoint, Meeting, nth

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.container import Container

TINT, COLOURS = 0.25, 3
"""Of a band: its opacity, and colours that its entry of the legend shows."""
LATE = 0.03
"""Part of the shown time from which on it is said who came last."""
THIN = 0.004
"""Part of the shown time below which a band is a line."""
SEEN = 2 * THIN
"""Part of the shown time that a band must take for the legend to have it."""
Box = tuple[tuple[float, float], float, float]
"""Of a call: the upper and the lower edge of its bar, where it begins and where it ends."""
APART: style.Style = {"facecolor": style.BAD_PAPER, "edgecolor": style.BAD, "hatch": "///", "linewidth": 0.0}


def came_late(meeting: Meeting, shown: ShownTime) -> bool:
    """Say whether its last rank came so late to a collective that it is marked, and counted.

    Args:
        meeting: The collective.
        shown: The time that is drawn.
    """
    late_ns = meeting.ends[meeting.last].call.start_ns - min(e.call.start_ns for e in meeting.ends.values())
    return late_ns > LATE * (shown.end_ns - shown.start_ns) and not meeting.is_start


class CallBands:
    """The bands of one figure.

    Args:
        axes: Where they are drawn.
        shown: The time that is drawn.
        place: Returns where a moment is on the time axis.
        row_of: Returns the middle of a call's bar.
        joined: Whether ranks are joined also where their calls fit.
    """

    def __init__(
        self,
        axes: Axes,
        shown: ShownTime,
        place: Callable[[int | None], float],
        row_of: Callable[[Call], float],
        *,
        joined: bool = True,
    ) -> None:
        self._axes, self._shown, self._x, self._row_of = axes, shown, place, row_of
        self._joined = joined
        self._colours: list[str] = []
        self._apart: dict[str, Meeting] = {}
        """The first call of each group at which its ranks parted."""

    def draw(self, meeting: Meeting) -> None:
        """Join the ranks of a collective, if two of them are to be seen, and mark who came late to it."""
        if len(meeting.ends) < 2 or not any(self._shown.shows(e.call) for e in meeting.ends.values()):
            return
        if meeting.name == START or (meeting.is_start and not _agreed(meeting)):
            return
        shown = [end for _, end in sorted(meeting.ends.items()) if self._shown.shows(end.call)]
        if not parted(meeting):
            if self._joined:
                self._band(shown)
            self._last(meeting)
            return
        self._apart.setdefault(meeting.group, meeting)
        for two in itertools.pairwise(shown):
            self._band(two, apart=not agree(*two))

    def _band(self, ends: Sequence[Endpoint], *, apart: bool = False) -> None:
        from matplotlib.patches import Polygon

        colour = style.call(ends[0].call.name)["facecolor"]
        look = APART if apart else {"facecolor": colour, "alpha": TINT, "edgecolor": "none"}
        boxes = [self._box(end, apart=apart) for end in ends]
        left = [(start, edge) for edges, start, _ in boxes for edge in edges]
        right = [(done, edge) for edges, _, done in boxes for edge in edges]
        self._axes.add_patch(Polygon([*left, *reversed(right)], zorder=2, **look))
        low, high = self._axes.get_xlim()
        seen = max(done - begun for _, begun, done in boxes) > SEEN * (high - low)
        for upper, lower in itertools.pairwise(boxes):
            seen |= self._thread(upper, lower, style.BAD if apart else colour)
        if seen and not apart and len(ends) > 1 and colour not in self._colours:
            self._colours.append(colour)

    def _box(self, end: Endpoint, *, apart: bool) -> Box:
        row = self._row_of(end.call)
        done = end.call.end_ns if apart or end.blocking is None else end.done_ns
        return (row - style.TALL / 2, row + style.TALL / 2), self._x(end.call.start_ns), self._x(done)

    def _thread(self, upper: Box, lower: Box, colour: str) -> bool:
        """Join two ranks by a line where the band between them is too thin and too slanted to be seen.

        Returns:
            Whether it drew one.
        """
        low, high = self._axes.get_xlim()
        (_, start), begun, done = upper
        (end, _), other_begun, other_done = lower
        widest = max(done - begun, other_done - other_begun)
        joins = widest < THIN * (high - low) and abs(begun - other_begun) > LATE * (high - low)
        if joins:
            self._axes.plot([begun, other_begun], [start, end], color=colour, linewidth=1.2, zorder=2)
        return joins

    def _last(self, meeting: Meeting) -> None:
        last = meeting.ends[meeting.last].call
        if came_late(meeting, self._shown) and self._shown.start_ns <= last.start_ns <= self._shown.end_ns:
            top = self._row_of(last) - style.TALL / 2
            self._axes.plot([self._x(last.start_ns)], [top], zorder=9, **style.mark("v", 9))

    @property
    def keys(self) -> list[Artist | Container]:
        """Entries of the legend."""
        keys: list[Artist | Container] = []
        if self._colours:
            looks = [{"facecolor": colour, "alpha": TINT} for colour in self._colours[:COLOURS]]
            keys.append(style.patches_key("band: ranks in the same collective call", looks))
        if self._apart:
            keys.append(style.patch_key("same number (#), not the same call", **APART))
        return keys

    @property
    def notes(self) -> list[str]:
        """What the ranks called where they first parted, a sentence for each group."""
        return [
            f"Hatched: the {nth(meeting.number)} call of {_group(meeting)} is "
            + ", ".join(
                f"{name} on {named_ranks(ranks)}"
                for name, ranks in ranks_by_value({r: e.call.name for r, e in meeting.ends.items()}).items()
            )
            + "."
            for meeting in self._apart.values()
            if len({end.call.name for end in meeting.ends.values()}) > 1
        ]


def _group(meeting: Meeting) -> str:
    return "the default group" if meeting.group == DEFAULT else meeting.group


def _agreed(meeting: Meeting) -> bool:
    """Say whether all ranks make the same group there."""
    ranks = {end.call.begun.op for end in meeting.ends.values()}
    return not meeting.missing and len(ranks) == 1
