"""Ranks and groups, and the messages in them: a column per rank, a row per group.

A disc with a number is a member, and the number its rank in that group; a dotted ring is a rank that helps
to create the group and is not in it. An arrow is a message, a line is what all of them do together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppwork.errors import listed, named_ranks
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table
from ppwork.plan import Plan
from ppwork.protocol.topology import GROUP_ORDER, LEADER_RANK, STAGE0_RANK, Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUPS: dict[str, tuple[str, str, str]] = {
    "world_pg": (style.SKY, "", "start-up, parity, shutdown"),
    "mesh_pg": (style.ORANGE, "///", "the leader's broadcast of envelopes"),
    "tp_pg": (style.PURPLE, "...", "sums of the generator"),
    "down_pg": (style.BLUE, "\\\\\\", "envelopes, rank 0 to the leader"),
    "up_pg": (style.GREEN, "xx", "results, the leader to rank 0"),
}
"""Of each group, in the order of creation: colour, hatch, and what it carries."""
MOST = 9
"""Columns; of a larger world the ranks before the last one are left out."""
LEFT, RIGHT, COLUMN, ROW, HEAD, BOTTOM = 3.35, 0.3, 0.98, 0.8, 1.3, 0.85
"""Margins, a column, a row, the head and the legend, in inches."""
RADIUS, BUS = 0.2, 0.36
"""Of a disc, and how far above it the broadcast runs, in inches."""
RING: style.Style = {"facecolor": "white", "edgecolor": style.DARK, "linestyle": ":", "linewidth": 1.5}


def topology(of: Plan | Topology) -> Picture:
    """Return who is in which group, who creates it, and which way messages go.

    Args:
        of: A plan, or its topology.
    """
    ranks = of.topology if isinstance(of, Plan) else of
    return Picture(_finding(ranks), lambda: _draw(ranks), _table(ranks))


def _draw(of: Topology) -> Figure:
    from matplotlib.patches import Rectangle

    columns = _columns(of)
    tall = HEAD + len(GROUPS) * ROW + BOTTOM
    paper, axes = style.page(LEFT + len(columns) * COLUMN + RIGHT, tall)
    mesh = [x for rank, x in columns.items() if rank != STAGE0_RANK]
    box = (min(mesh) - COLUMN / 2 + 0.06, 0.1), len(mesh) * COLUMN - 0.12, tall - BOTTOM - 0.15
    axes.add_patch(Rectangle(*box, facecolor=style.PALE, edgecolor=style.GREY, linewidth=0.8, zorder=0))
    axes.text(sum(mesh) / len(mesh), 0.33, "mesh", fontsize=12, style="italic", **style.CENTRED)
    for rank, x in columns.items():
        name, role = ("…", "") if rank is None else (f"rank {rank}", str(of.role(rank)))
        axes.text(x, 0.67, name, fontsize=13, fontweight="bold", **style.CENTRED)
        axes.text(x, 0.95, role, fontsize=11, **style.CENTRED)
    for row, name in enumerate(GROUPS):
        _group(axes, HEAD + (row + 0.5) * ROW, name, of, columns)
    _legend(paper)
    return paper


def _columns(of: Topology) -> dict[int | None, float]:
    """Return the place of each rank in inches; ``None`` stands for those that are left out."""
    ranks: list[int | None] = list(range(of.world_size))
    if len(ranks) > MOST:
        ranks = [*ranks[: MOST - 2], None, ranks[-1]]
    return {rank: LEFT + (column + 0.5) * COLUMN for column, rank in enumerate(ranks)}


def _group(axes: Axes, y: float, name: str, of: Topology, columns: dict[int | None, float]) -> None:
    from matplotlib.patches import Circle

    colour, hatch, carries = GROUPS[name]
    members = of.ranks(name)
    axes.text(0.15, y - 0.04, name, va="bottom", fontsize=13, fontweight="bold")
    axes.text(0.15, y + 0.04, carries, va="top", fontsize=11)
    xs = [columns[rank] for rank in members if rank in columns]
    if len(members) > 1:
        _traffic(axes, y, name, xs, {"color": colour, "linewidth": 3.0, "zorder": 2})
    for rank, x in columns.items():
        if rank in members:
            axes.add_patch(Circle((x, y), RADIUS, facecolor=colour, hatch=hatch, edgecolor="black", zorder=4))
            number = str(members.index(rank))
            axes.text(x, y, number, fontsize=12, zorder=6, bbox=style.white_box(0.12), **style.CENTRED)
        elif rank is not None:
            axes.add_patch(Circle((x, y), RADIUS, **RING, zorder=4))


def _traffic(axes: Axes, y: float, name: str, xs: list[float], line: style.Style) -> None:
    """Draw what moves: an arrow along a link, one line from the leader down to each follower, else a line."""
    first, last = xs[0], xs[-1]
    if name == "down_pg":
        style.arrow(axes, (first, y), (last - RADIUS - 0.04, y), mutation_scale=18, **line)
    elif name == "up_pg":
        style.arrow(axes, (last, y), (first + RADIUS + 0.04, y), mutation_scale=18, **line)
    elif name == "mesh_pg":
        axes.plot([first, first, last], [y, y - BUS, y - BUS], **line)
        for x in xs[1:]:
            style.arrow(axes, (x, y - BUS), (x, y - RADIUS + 0.02), mutation_scale=18, **line)
    else:
        axes.plot([first, last], [y, y], **line)


def _legend(paper: Figure) -> None:
    from matplotlib.legend_handler import HandlerPatch, HandlerTuple
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle, FancyArrowPatch

    def disc(*, xdescent: float, ydescent: float, width: float, height: float, **_: Any) -> Circle:  # noqa: ANN401
        return Circle((width / 2 - xdescent, height / 2 - ydescent), 0.75 * height)

    def arrow(*, xdescent: float, ydescent: float, width: float, height: float, **_: Any) -> FancyArrowPatch:  # noqa: ANN401
        y = height / 2 - ydescent
        return FancyArrowPatch((-xdescent, y), (width - xdescent, y), arrowstyle="-|>", mutation_scale=15)

    first_two = list(GROUPS.values())[:2]  # more have no room
    handles: list[Any] = [
        tuple(
            Circle((0, 0), facecolor=colour, hatch=hatch, edgecolor="black") for colour, hatch, _ in first_two
        ),
        Circle((0, 0), **RING),
        Line2D([], [], color="black", linewidth=2.5),
        FancyArrowPatch((0, 0), (1, 0), color="black", linewidth=2.5),
    ]
    labels = ["member; its rank in the group", "creates it too, is not in it"]
    labels += ["all of them together", "from one to the others"]
    drawn_by = {
        tuple: HandlerTuple(ndivide=None),
        Circle: HandlerPatch(patch_func=disc),
        FancyArrowPatch: HandlerPatch(patch_func=arrow),
    }
    look = {"ncols": 2, "handlelength": 2.6, "labelspacing": 0.7}
    style.legend_below(paper, handles, inches=0.04, labels=labels, handler_map=drawn_by, **look)


def _table(of: Topology) -> Table:
    """Return the groups as a table, in the order of their creation."""
    rows = [[name, listed(of.ranks(name)), carries] for name, (_, _, carries) in GROUPS.items()]
    return Table(["group", "ranks", "what moves in it"], rows)


def _finding(of: Topology) -> str:
    """State in words who is in which group and which way messages go."""
    mesh = named_ranks(of.mesh_ranks)
    passes = f", in which rank {LEADER_RANK}, the leader, broadcasts envelopes" if of.mesh_size > 1 else ""
    return (
        f"{named_ranks(of.ranks('world_pg')).capitalize()} are in world_pg. mesh_pg{passes}, and tp_pg have "
        f"{mesh}. down_pg leads from rank {STAGE0_RANK} to rank {LEADER_RANK}, up_pg back. Every rank "
        f"creates all {len(GROUP_ORDER)} groups besides world_pg; rank {STAGE0_RANK} is not in the two of "
        "the mesh."
    )
