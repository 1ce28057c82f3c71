"""Who is in which group, and what moves in it, as a picture: a column per rank, a row per group.

A disc with a number is a member, and the number its rank in that group; a dotted ring is a rank that helps
to create the group and is not in it. An arrow is a message, a line is what all of them do together.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ppwork.errors import named_ranks
from ppwork.plan import Plan
from ppwork.show import Picture, show
from ppwork.topology import GROUP_ORDER, LEADER_RANK, STAGE0_RANK, Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

GROUPS: dict[str, tuple[str, str, str]] = {
    "world_pg": ("#56B4E9", "", "start-up, parity, shutdown"),
    "mesh_pg": ("#E69F00", "///", "the leader's broadcast of envelopes"),
    "tp_pg": ("#CC79A7", "...", "sums of the generator"),
    "down_pg": ("#0072B2", "\\\\\\", "envelopes, rank 0 to the leader"),
    "up_pg": ("#009E73", "xx", "results, the leader to rank 0"),
}
"""Of each group, in the order of creation: Okabe and Ito's colour, hatch, and what it carries."""
MOST = 9
"""Columns; of a larger world the ranks before the last one are left out."""
LEFT, RIGHT, COLUMN, ROW, HEAD, BOTTOM = 3.35, 0.3, 0.98, 0.8, 1.3, 0.85
"""Margins, a column, a row, the head and the legend, in inches."""
RADIUS, BUS = 0.2, 0.36
"""Of a disc, and how far above it the broadcast runs, in inches."""
RING: dict[str, Any] = {"facecolor": "white", "edgecolor": "#555555", "linestyle": ":", "linewidth": 1.5}


def topology(of: Plan | Topology) -> Picture:
    """Return the picture of a plan's ranks and groups, for the end of a cell.

    Args:
        of: A plan, or its topology.
    """
    known = of.topology if isinstance(of, Plan) else of
    return show(plot_topology(known), alt=topology_finding(known))


def plot_topology(of: Topology) -> Figure:
    """Draw ranks and groups; ``topology`` puts it into a notebook."""
    from matplotlib.figure import Figure
    from matplotlib.patches import Rectangle

    columns = _columns(of)
    wide = LEFT + len(columns) * COLUMN + RIGHT
    tall = HEAD + len(GROUPS) * ROW + BOTTOM
    figure = Figure(figsize=(wide, tall), facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, wide)
    axes.set_ylim(tall, 0)
    axes.set_axis_off()
    mesh = [x for rank, x in columns.items() if rank != STAGE0_RANK]
    box = (min(mesh) - COLUMN / 2 + 0.06, 0.1), len(mesh) * COLUMN - 0.12, tall - BOTTOM - 0.15
    axes.add_patch(Rectangle(*box, facecolor="#E8E8E8", edgecolor="#777777", linewidth=0.8, zorder=0))
    axes.text(sum(mesh) / len(mesh), 0.33, "mesh", ha="center", va="center", fontsize=12, style="italic")
    for rank, x in columns.items():
        name, role = ("…", "") if rank is None else (f"rank {rank}", str(of.role(rank)))
        axes.text(x, 0.67, name, ha="center", va="center", fontsize=13, fontweight="bold")
        axes.text(x, 0.95, role, ha="center", va="center", fontsize=11)
    for row, name in enumerate(GROUPS):
        _group(axes, HEAD + (row + 0.5) * ROW, name, of, columns)
    _legend(figure, tall)
    return figure


def _columns(of: Topology) -> dict[int | None, float]:
    """Return the place of each rank in inches; ``None`` stands for those that are left out."""
    ranks: list[int | None] = list(range(of.world_size))
    if len(ranks) > MOST:
        ranks = [*ranks[: MOST - 2], None, ranks[-1]]
    return {rank: LEFT + (place + 0.5) * COLUMN for place, rank in enumerate(ranks)}


def _group(axes: Axes, y: float, name: str, of: Topology, columns: dict[int | None, float]) -> None:
    from matplotlib.patches import Circle

    colour, hatch, carries = GROUPS[name]
    members = of.ranks(name)
    axes.text(0.15, y - 0.04, name, va="bottom", fontsize=13, fontweight="bold")
    axes.text(0.15, y + 0.04, carries, va="top", fontsize=11)
    places = [columns[rank] for rank in members if rank in columns]
    if len(members) > 1:
        _traffic(axes, y, name, places, {"color": colour, "linewidth": 3.0, "zorder": 2})
    for rank, x in columns.items():
        if rank in members:
            axes.add_patch(Circle((x, y), RADIUS, facecolor=colour, hatch=hatch, edgecolor="black", zorder=4))
            box = {"boxstyle": "round,pad=0.12", "facecolor": "white", "edgecolor": "none"}
            number = str(members.index(rank))
            axes.text(x, y, number, ha="center", va="center", fontsize=12, zorder=6, bbox=box)
        elif rank is not None:
            axes.add_patch(Circle((x, y), RADIUS, **RING, zorder=4))


def _traffic(axes: Axes, y: float, name: str, places: list[float], style: dict[str, Any]) -> None:
    """Draw what moves: an arrow along a link, one line from the leader down to each follower, else a line."""
    first, last = places[0], places[-1]
    if name == "down_pg":
        _arrow(axes, (first, y), (last - RADIUS - 0.04, y), style)
    elif name == "up_pg":
        _arrow(axes, (last, y), (first + RADIUS + 0.04, y), style)
    elif name == "mesh_pg":
        axes.plot([first, first, last], [y, y - BUS, y - BUS], **style)
        for x in places[1:]:
            _arrow(axes, (x, y - BUS), (x, y - RADIUS + 0.02), style)
    else:
        axes.plot([first, last], [y, y], **style)


def _arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float], style: dict[str, Any]) -> None:
    arrow = {"arrowstyle": "-|>", "mutation_scale": 18, "shrinkA": 0, "shrinkB": 0, **style}
    axes.annotate("", xy=end, xytext=start, arrowprops=arrow)


def _legend(figure: Figure, tall: float) -> None:
    from matplotlib.legend_handler import HandlerPatch, HandlerTuple
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle, FancyArrowPatch

    def round_one(*, xdescent: float, ydescent: float, width: float, height: float, **_: Any) -> Circle:  # noqa: ANN401
        return Circle((width / 2 - xdescent, height / 2 - ydescent), 0.75 * height)

    def arrow(*, xdescent: float, ydescent: float, width: float, height: float, **_: Any) -> FancyArrowPatch:  # noqa: ANN401
        y = height / 2 - ydescent
        return FancyArrowPatch((-xdescent, y), (width - xdescent, y), arrowstyle="-|>", mutation_scale=15)

    looks = [(colour, hatch) for colour, hatch, _ in GROUPS.values()][:2]  # more have no room
    discs = tuple(Circle((0, 0), facecolor=colour, hatch=hatch, edgecolor="black") for colour, hatch in looks)
    figure.legend(
        handles=[
            discs,
            Circle((0, 0), **RING),
            Line2D([], [], color="black", linewidth=2.5),
            FancyArrowPatch((0, 0), (1, 0), color="black", linewidth=2.5),
        ],
        labels=[
            "member; its rank in the group",
            "creates it too, is not in it",
            "all of them together",
            "from one to the others",
        ],
        handler_map={
            tuple: HandlerTuple(ndivide=None),
            Circle: HandlerPatch(patch_func=round_one),
            FancyArrowPatch: HandlerPatch(patch_func=arrow),
        },
        loc="lower center",
        bbox_to_anchor=(0.5, 0.04 / tall),
        ncols=2,
        handlelength=2.6,
        labelspacing=0.7,
        frameon=False,
        fontsize=11,
    )


def topology_finding(of: Topology) -> str:
    """State in words who is in which group and which way messages go."""
    mesh = named_ranks(of.mesh_ranks)
    passes = f", in which rank {LEADER_RANK}, the leader, broadcasts envelopes" if of.mesh_size > 1 else ""
    return (
        f"{named_ranks(of.ranks('world_pg')).capitalize()} are in world_pg. mesh_pg{passes}, and tp_pg have "
        f"{mesh}. down_pg leads from rank {STAGE0_RANK} to rank {LEADER_RANK}, up_pg back. Every rank "
        f"creates all {len(GROUP_ORDER)} groups besides world_pg; rank {STAGE0_RANK} is not in the two of "
        "the mesh."
    )
