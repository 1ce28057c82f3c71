"""The bands between the ranks of a collective in the figure of a program's calls.

Calls of a group are one call by their number alone. A number under which the ranks called different things
is hatched, in the colour of what went wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ppwork.diagnosis.standing import parted
from ppwork.pictures import style
from ppwork.pictures.shown_time import ShownTime
from ppwork.records.calls import Call
from ppwork.timeline.meetings import START, Meeting

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes

LATE = 0.03
"""Part of the shown time from which on it is said who came last."""
APART: style.Style = {"facecolor": style.BAD_PAPER, "edgecolor": style.BAD, "hatch": "///", "linewidth": 0.0}


class CallBands:
    """The bands of one figure.

    Args:
        axes: Where they are drawn.
        shown: The time that is drawn.
        place: Returns where a moment is on the time axis.
        row_of: Returns the middle of a call's bar.
    """

    def __init__(
        self,
        axes: Axes,
        shown: ShownTime,
        place: Callable[[int | None], float],
        row_of: Callable[[Call], float],
    ) -> None:
        self._axes, self._shown, self._x, self._row_of = axes, shown, place, row_of
        self._colours: list[str] = []
        self._any_apart = False

    def draw(self, meeting: Meeting) -> None:
        """Join the ranks of a collective, if two of them are to be seen, and mark who came late to it."""
        if len(meeting.ends) < 2 or not any(self._shown.shows(e.call) for e in meeting.ends.values()):
            return
        if meeting.name == START or (meeting.is_start and not _agreed(meeting)):
            return
        apart = parted(meeting)
        colour = style.call(meeting.name)["facecolor"]
        if not apart:
            self._colours.append(colour)
        self._any_apart |= apart
        self._band(meeting, APART if apart else {"facecolor": colour, "alpha": 0.25, "edgecolor": "none"})
        if not apart:
            self._last(meeting)

    def _band(self, meeting: Meeting, look: style.Style) -> None:
        from matplotlib.patches import Polygon

        left, right = [], []
        for _, end in sorted(meeting.ends.items()):
            if not self._shown.shows(end.call):
                continue
            row = self._row_of(end.call)
            edges = (row - style.TALL / 2, row + style.TALL / 2)
            left += [(self._x(end.call.start_ns), edge) for edge in edges]
            done = end.call.end_ns if end.blocking is None else end.done_ns
            right += [(self._x(done), edge) for edge in edges]
        self._axes.add_patch(Polygon([*left, *reversed(right)], zorder=2, **look))

    def _last(self, meeting: Meeting) -> None:
        last = meeting.ends[meeting.last].call
        late_ns = last.start_ns - min(end.call.start_ns for end in meeting.ends.values())
        shown_ns = self._shown.end_ns - self._shown.start_ns
        if late_ns > LATE * shown_ns and not meeting.is_start and self._shown.shows(last):
            top = self._row_of(last) - style.TALL / 2
            self._axes.plot([self._x(last.start_ns)], [top], zorder=9, **style.mark("v", 9))

    @property
    def keys(self) -> list[Artist]:
        """Entries of the legend."""
        keys: list[Artist] = []
        if self._colours:
            look = {"facecolor": self._colours[-1], "alpha": 0.25}
            keys.append(style.patch_key("one call of all its ranks", **look))
        if self._any_apart:
            keys.append(style.patch_key("same number (#), not the same call", **APART))
        return keys


def _agreed(meeting: Meeting) -> bool:
    """Say whether all ranks make the same group there."""
    ranks = {end.call.begun.op for end in meeting.ends.values()}
    return not meeting.missing and len(ranks) == 1
