"""Who waits for whom, as graphs: a circle per rank, an arrow from a rank to the one that it waits for.

Nothing here was recorded: it is drawn as it is told. The rank at which all arrows end is marked, and so are
the arrows of ranks that wait for each other.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ppwork.errors import PlanError, listed, named_ranks
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table

if TYPE_CHECKING:
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, RADIUS, AROUND, ABOVE, LINE = 3.9, 0.27, 0.72, 0.25, 0.25
"""Of a graph, a rank's circle, the circle that ranks stand on, the upper margin and a line, in inches."""
MOST_RANKS, MOST_GRAPHS = 6, 4
SEEN, UNSEEN = "waits for, in a call of torch", "waits for, and torch does not see it"
NOBODY = "waits for nobody"
ARROW: style.Style = {"marker": ">", "markersize": 6}
"""Of an arrow in the legend."""
Waits = Mapping[int, Sequence[int]]
"""Of each rank the ranks that it waits for."""


def waits(graphs: Mapping[str, Waits], *, unseen: Sequence[tuple[int, int]] = ()) -> Picture:
    """Return who waits for whom, a graph beside the other.

    Args:
        graphs: 1 to 4, each with 2 to 6 ranks: of every rank the ranks that it waits for. What is said of one
            stands below it, and may have several lines; the sentence has the first.
        unseen: Pairs of ranks: the first waits for the second in no call of torch.

    Raises:
        PlanError: There are too few or too many of them, or a rank waits for itself or for one that is not
            there.
    """
    wrong = [text for text, of in graphs.items() if not 2 <= len(of) <= MOST_RANKS or not _fits(of)]
    if wrong or not 1 <= len(graphs) <= MOST_GRAPHS:
        raise PlanError(
            f"{len(graphs)} graphs of waits cannot be drawn{': ' if wrong else ''}{listed(wrong)}.",
            check_first=f"1 to {MOST_GRAPHS} graphs, 2 to {MOST_RANKS} ranks in each, no wait for others",
        )
    rows = [
        [_heading(text), str(rank), listed(others) or "nobody"]
        for text, of in graphs.items()
        for rank, others in of.items()
    ]
    table = Table(["graph", "rank", "waits for"], rows, above="as it was told; nothing was recorded")
    finding = " ".join(f"{_heading(text)}: {_said(of)}." for text, of in graphs.items())
    return Picture(finding, lambda: _draw(graphs, set(unseen)), table)


def _heading(text: str) -> str:
    """Return the first line of what stands below a graph, as a sentence begins with it."""
    line = text.partition("\n")[0].rstrip(":")
    return line[:1].upper() + line[1:]


def _fits(of: Waits) -> bool:
    return all(other in of and other != rank for rank, others in of.items() for other in others)


def _said(of: Waits) -> str:
    free = [rank for rank, others in of.items() if not others]
    if free:
        return f"{named_ranks(free)} {'wait' if free[1:] else 'waits'} for nobody"
    return f"{named_ranks([rank for rank in of if rank in _reached(of, rank)])} wait for each other"


def _reached(of: Waits, rank: int) -> set[int]:
    """Return the ranks that one waits for, over others or at once."""
    reached: set[int] = set()
    to_see = list(of[rank])
    while to_see:
        if (other := to_see.pop()) not in reached:
            reached.add(other)
            to_see += of[other]
    return reached


def _draw(graphs: Mapping[str, Waits], unseen: set[tuple[int, int]]) -> Figure:
    lines = max(text.count("\n") + 1 for text in graphs)
    keys: list[Artist] = [style.line_key(SEEN, color="black", linewidth=1.8, **ARROW)]
    if unseen:
        keys.append(style.line_key(UNSEEN, color=style.ALARM, linewidth=1.8, linestyle="--", **ARROW))
    if any(not others for of in graphs.values() for others in of.values()):
        keys.append(style.patch_key(NOBODY, **_of_rank(free=True)))
    columns = min(len(keys), len(graphs))
    # Two ranks stand beside each other, and need less room than a circle of them.
    high = RADIUS + (AROUND if any(len(of) > 2 for of in graphs.values()) else 0.0)
    foot = ABOVE + 2 * high + LINE / 2
    paper, axes = style.page(WIDE * len(graphs), foot + LINE * (lines + 1 - len(keys) // -columns))
    for column, (text, of) in enumerate(graphs.items()):
        middle = (column + 0.5) * WIDE
        _graph(axes, of, (middle, ABOVE + high), unseen)
        below: style.Style = {"ha": "center", "va": "top", "fontsize": 12, "linespacing": 1.35}
        axes.text(middle, foot, text, **below)
    style.legend_below(paper, keys, ncols=columns)
    return paper


def _of_rank(*, free: bool) -> style.Style:
    if free:
        return {"facecolor": style.BAD_PAPER, "edgecolor": style.ALARM, "linewidth": 2.6}
    return {"facecolor": "white", "edgecolor": "black", "linewidth": 1.2}


def _graph(axes: Axes, of: Waits, middle: tuple[float, float], unseen: set[tuple[int, int]]) -> None:
    from matplotlib.patches import Circle

    # Two ranks stand beside each other, more of them on a circle with the first one above.
    first = math.pi if len(of) == 2 else -math.pi / 2
    angles = [first + 2 * math.pi * n / len(of) for n in range(len(of))]
    places = {
        rank: (middle[0] + AROUND * math.cos(angle), middle[1] + AROUND * math.sin(angle))
        for rank, angle in zip(of, angles, strict=True)
    }
    for rank, others in of.items():
        for other in others:
            (x, y), (to_x, to_y) = places[rank], places[other]
            far = math.hypot(to_x - x, to_y - y)
            x_in, y_in = (to_x - x) / far * (RADIUS + 0.05), (to_y - y) / far * (RADIUS + 0.05)
            is_seen = (rank, other) not in unseen
            look: style.Style = {"color": "black" if is_seen else style.ALARM, "linewidth": 1.8}
            look |= {} if is_seen else {"linestyle": "--"}
            # Two that wait for each other have an arrow above and one below.
            bend = 0.3 if rank in of[other] else 0.0
            style.arrow(
                axes, (x + x_in, y + y_in), (to_x - x_in, to_y - y_in),
                connectionstyle=f"arc3,rad={bend}", gid=f"{rank} waits for {other}", **look,
            )  # fmt: skip
    for rank, place in places.items():
        axes.add_patch(Circle(place, RADIUS, gid=f"rank {rank}", zorder=3, **_of_rank(free=not of[rank])))
        axes.text(*place, str(rank), fontsize=13, zorder=4, **style.CENTRED)
