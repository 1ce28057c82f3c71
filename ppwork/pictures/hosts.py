"""A job over two hosts: where its ranks are, who asks the store, and which of them talk over the cable.

It is drawn from the ranks of each host, and from what is said of the cable; no message was recorded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING

from ppwork.errors import PlanError, listed, named_ranks
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

WIDE, BETWEEN, MARGIN, RADIUS, COLUMN = 3.9, 2.6, 0.25, 0.27, 1.5
"""Of a host, the gap for the cable, around the figure, a rank's circle and ranks' distance, in inches."""
BOOK, BOOK_HIGH, NEAR = 1.25, 0.17, 0.03
"""Half the width and height of a store's box, and how near to an edge an arrow ends, in inches."""
TOP, STORE, RANKS, FOOT = 0.35, 1.1, 2.15, 2.7
"""Heights of the hosts' upper edge, their stores' and ranks' middles and the lower edge, in inches."""
TWO, MOST_RANKS = 2, 3
ASKS: style.Style = {"color": style.GREY, "linewidth": 1.2, "linestyle": "--"}
MEETS: style.Style = {"color": style.DARK, "linewidth": 1.6, "linestyle": ":"}
TALKS: style.Style = {"color": "black", "linewidth": 2.2}
LOST: style.Style = {"color": style.ALARM, "linewidth": 2.2}
FREE: style.Style = {"color": style.MEDIUM, "linewidth": 2.2}
Places = dict[int, tuple[float, float]]


def hosts(
    ranks: Mapping[str, Sequence[int]],
    *,
    store: str,
    interface: str,
    lost: tuple[int, int] | None = None,
    says: str = "",
) -> Picture:
    """Return where the ranks of a job are, and over what they talk.

    Ranks that stand next to each other talk: 0 with 1, 1 with 2.

    Args:
        ranks: Of each of the two hosts, by its name, its 1 to 3 ranks. The first host has the store.
        store: The store's address and port.
        interface: The network interface that leads to the other host.
        lost: Two ranks of different hosts; what the first one sends to the second one is lost.
        says: What the lost message says, where the second rank only announces its data before it has that
            word: its way is drawn as free.

    Raises:
        PlanError: There are not two hosts, one has too few or too many ranks, they are not 0
            and up, or the lost way is not between neighbours on different hosts.
    """
    of_rank = {rank: name for name, own in ranks.items() for rank in own}
    everybody = sorted(rank for own in ranks.values() for rank in own)
    wrong = everybody != [*range(len(everybody))] or (
        lost is not None
        and (abs(lost[0] - lost[1]) != 1 or not {*lost} <= {*of_rank} or of_rank[lost[0]] == of_rank[lost[1]])
    )
    if len(ranks) != TWO or wrong or not all(1 <= len(own) <= MOST_RANKS for own in ranks.values()):
        raise PlanError(
            f"Hosts with ranks {dict(ranks)} cannot be drawn, with {lost} lost.",
            check_first=f"two hosts, 1 to {MOST_RANKS} ranks each, from 0 up; lost: neighbours on both",
        )
    where = ", ".join(f"{named_ranks(own)} on {name}" for name, own in ranks.items())
    over = [pair for pair in pairwise(sorted(of_rank)) if of_rank[pair[0]] != of_rank[pair[1]]]
    finding = (
        f"{where[0].upper()}{where[1:]}. At start-up the torchruns meet at the store, {store}; every rank "
        f"writes its address into it and reads the others'; messages go directly, over {interface} between "
        f"ranks {listed(f'{a} and {b}' for a, b in over)}."
    )
    if lost is not None:
        finding += f" What rank {lost[0]} sends to rank {lost[1]} is lost"
        finding += f': "{says}". So rank {lost[1]} sends no chunk, though its way is free.' if says else "."
    rows = [
        [str(rank), name, listed(str(each) for each in (rank - 1, rank + 1) if each in of_rank)]
        for rank, name in of_rank.items()
    ]
    table = Table(
        ["rank", "host", "talks with"], rows, above="as the job was started; no message was recorded"
    )
    return Picture(finding, lambda: _draw(ranks, store, interface, lost, says), table)


def _draw(
    ranks: Mapping[str, Sequence[int]], store: str, interface: str, lost: tuple[int, int] | None, says: str
) -> Figure:
    from matplotlib.patches import Circle, FancyBboxPatch, Rectangle

    paper, axes = style.page(2 * (MARGIN + WIDE) + BETWEEN, FOOT + 0.75)
    places: Places = {}
    book = (MARGIN + WIDE / 2, STORE)
    for number, (name, own) in enumerate(ranks.items()):
        left = MARGIN + number * (WIDE + BETWEEN)
        axes.add_patch(
            FancyBboxPatch(
                (left, TOP), WIDE, FOOT - TOP, boxstyle="round,pad=0,rounding_size=0.12",
                facecolor=style.FAINT, edgecolor=style.GREY, linewidth=1.2, gid=name,
            )
        )  # fmt: skip
        axes.text(left + 0.15, TOP + 0.22, name, fontsize=13, fontweight="bold", va="center")
        text = f"torchrun --node-rank={number}"
        axes.text(left + WIDE - 0.15, TOP + 0.22, text, fontsize=11, ha="right", va="center")
        # Down to the store's upper edge, and from the other host to its side, above the ranks' arrows.
        head = (book[0] + BOOK + NEAR, STORE - 0.1) if number else (book[0] + 0.9, STORE - BOOK_HIGH - NEAR)
        style.arrow(axes, (left + WIDE - 1.1, TOP + 0.33), head, gid=f"{name} meets", **MEETS)
        for column, rank in enumerate(own):
            places[rank] = (left + WIDE / 2 + (column - (len(own) - 1) / 2) * COLUMN, RANKS)
    for rank, (x, y) in places.items():
        # Those of the other host come in over the cable, from the side.
        side = (book[0] + BOOK + NEAR, STORE)
        below = (book[0] + min(max(x - book[0], -0.3), 0.3), STORE + BOOK_HIGH + NEAR)
        head = below if x < MARGIN + WIDE else side
        style.arrow(axes, (x, y - RADIUS - NEAR), head, arrowstyle="<|-|>", gid=f"{rank} asks", **ASKS)
    for a, b in pairwise(sorted(places)):
        _talk(axes, places, (a, b), lost if lost and set(lost) == {a, b} else None, says)
    corner = (book[0] - BOOK, book[1] - BOOK_HIGH)
    white: style.Style = {"facecolor": "white", "edgecolor": "black"}
    axes.add_patch(Rectangle(corner, 2 * BOOK, 2 * BOOK_HIGH, zorder=3, **white))
    axes.text(*book, f"store, {store}", fontsize=11, zorder=4, **style.CENTRED)
    middle = MARGIN + WIDE + BETWEEN / 2
    axes.text(
        middle,
        FOOT - 0.08,
        f"the cable: {interface}",
        fontsize=11,
        va="bottom",
        ha="center",
    )
    for rank, place in places.items():
        look: style.Style = {"facecolor": "white", "edgecolor": "black", "linewidth": 1.2}
        axes.add_patch(Circle(place, RADIUS, gid=f"rank {rank}", zorder=3, **look))
        axes.text(*place, str(rank), fontsize=13, zorder=4, **style.CENTRED)
    keys = [
        style.line_key(
            "rank", marker="o", markersize=12, linestyle="none", color="black", markerfacecolor="white"
        ),
        style.line_key("torchruns meet", **MEETS),
        style.line_key("writes and reads addresses, at start-up", **ASKS),
    ]
    if not says or len(places) > TWO:
        keys.append(style.line_key("messages of the ranks", **TALKS))
    if says:
        keys.append(style.line_key("way free: no chunk sent", **FREE))
    if lost is not None:
        keys.append(style.line_key("lost", marker="X", markersize=10, markeredgecolor="white", **LOST))
    style.legend_below(paper, keys)
    return paper


def _talk(axes: Axes, places: Places, pair: tuple[int, int], lost: tuple[int, int] | None, says: str) -> None:
    """Draw both ways between two ranks; of a lost one only how far it comes, and what it says."""
    for (sender, receiver), down in ((pair, -0.09), (pair[::-1], 0.09)):
        (x, y), (to_x, _) = places[sender], places[receiver]
        side = 1 if to_x > x else -1
        tail, head = (x + side * (RADIUS + 0.03), y + down), (to_x - side * (RADIUS + 0.03), y + down)
        is_lost = (sender, receiver) == lost
        if is_lost:
            head = ((x + to_x) / 2, y + down)
            axes.plot(*head, zorder=5, **style.mark("X", 13, style.ALARM, edge=1.2))
            if says:
                word: style.Style = {"fontsize": 11, "ha": "center", "va": "center", "color": style.ALARM}
                axes.text(tail[0] + side * 0.95, y + down + 0.2, f'"{says}"', **word)
        look = LOST if is_lost else FREE if lost and says else TALKS
        style.arrow(axes, tail, head, gid=f"{sender} to {receiver}", **look)
