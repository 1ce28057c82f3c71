"""The tree of gloo's broadcast on paper: who sends to whom in which round, and who waits for a late rank."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.errors import PlanError
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLUMN, ROW, RADIUS, LEFT, ABOVE = 1.5, 1.0, 0.27, 2.0, 0.5
"""Distances of ranks and rounds, size of a circle, and margins, in inches."""
MOST_RANKS = 9


def tree(ranks: int, *, late: int | None = None) -> Picture:
    """Return how a broadcast of gloo travels from rank 0.

    Args:
        ranks: Number of ranks, 2 to 9.
        late: A rank that enters the call long after the others; who then comes back late is marked.

    Raises:
        PlanError: There are too few ranks, too many to draw, or the late one is none of them.
    """
    if not 2 <= ranks <= MOST_RANKS or (late is not None and not 0 <= late < ranks):
        raise PlanError(
            f"There were {ranks} ranks, and rank {late} was to be late.",
            check_first=f"ranks: 2 to {MOST_RANKS}; late: one of them, or None",
        )
    rounds = (ranks - 1).bit_length()
    held = set() if late is None else {rank for rank in range(ranks) if _comes_back_late(rank, late)}
    finding = f"On paper: a broadcast from rank 0 to {ranks} ranks takes {rounds} rounds."
    if late is not None:
        back = ", ".join(map(str, sorted(held)))
        finding += f" If rank {late} comes late, these come back late: {back}."
    rows = [[str(_round(rank)), str(_sender(rank)), str(rank)] for rank in range(1, ranks)]
    table = Table(["round", "from rank", "to rank"], rows, above="gloo's tree on paper; nothing was recorded")
    return Picture(finding, lambda: _draw(ranks, late, held), table)


def _round(rank: int) -> int:
    return rank.bit_length() - 1


def _sender(rank: int) -> int:
    return rank - (1 << _round(rank))


def _comes_back_late(rank: int, late: int) -> bool:
    """Say whether a rank is late, sends to the late one, or has the tensor from it."""
    if rank == late or (late and rank == _sender(late)):
        return True
    while rank:
        rank = _sender(rank)
        if rank == late:
            return True
    return False


def _from_the_left(root: int, ranks: int) -> list[int]:
    """Return a rank and those behind it in an order in which no two arrows cross: late rounds first."""
    behind = [rank for rank in range(root + 1, ranks) if _sender(rank) == root]
    return [root, *(below for rank in reversed(behind) for below in _from_the_left(rank, ranks))]


def _draw(ranks: int, late: int | None, held: set[int]) -> Figure:
    from matplotlib.patches import Circle

    rounds = (ranks - 1).bit_length()
    paper, axes = style.page(LEFT + COLUMN * (ranks - 0.4), ABOVE + ROW * rounds + 0.9)
    places = {
        rank: (LEFT + COLUMN * column, ABOVE + (ROW * (_round(rank) + 1) if rank else 0.0))
        for column, rank in enumerate(_from_the_left(0, ranks))
    }
    for number in range(rounds):
        y = ABOVE + ROW * (number + 1)
        axes.text(0.2, y, f"round {number}", va="center", fontsize=11, color=style.DARK)
    for rank in range(1, ranks):
        (x, y), (to_x, to_y) = places[_sender(rank)], places[rank]
        far = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
        x_in, y_in = (to_x - x) / far * (RADIUS + 0.03), (to_y - y) / far * (RADIUS + 0.03)
        style.arrow(axes, (x + x_in, y + y_in), (to_x - x_in, to_y - y_in), color="black", linewidth=1.6)
    for rank, place in places.items():
        look: style.Style = {"facecolor": "white", "edgecolor": "black", "linewidth": 1.2}
        if rank == late:
            look = {"facecolor": style.MEDIUM, "edgecolor": "black", "linewidth": 1.2, "hatch": "///"}
        elif rank in held:
            look = {"facecolor": style.BAD_PAPER, "edgecolor": style.ALARM, "linewidth": 2.6}
        axes.add_patch(Circle(place, RADIUS, gid=f"rank {rank}", zorder=3, **look))
        axes.text(*place, str(rank), fontsize=12, zorder=4, bbox=style.white_box(0.1), **style.CENTRED)
    if late is not None:
        keys = [
            style.patch_key(f"rank {late}, late", facecolor=style.MEDIUM, hatch="///", edgecolor="black"),
            style.patch_key(
                "comes back late, too", facecolor=style.BAD_PAPER, edgecolor=style.ALARM, linewidth=2.6
            ),
        ]
        style.legend_below(paper, keys)
    return paper
