"""The way of one chunk through the ranks: the first drawing of the course, before any run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ppwork.errors import named_ranks
from ppwork.pictures import style
from ppwork.pictures.picture import Picture
from ppwork.pictures.tables import Table
from ppwork.plan import Plan
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK, Topology

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST = 4
"""Ranks of the mesh that are drawn; of a larger one the last stands for those between."""
STAGE0_X, MESH_X, BOX, TALL, GAP = 2.1, 6.6, 2.3, 0.78, 0.5
"""Left sides of rank 0 and of the mesh, width of a box, height of one, and room between two, in inches."""
TOP, BOTTOM, MARGIN = 0.75, 0.2, 0.2


def journey(of: Plan | Topology) -> Picture:
    """Return the way of a chunk: from the clip through rank 0, leader and mesh, and back to rank 0.

    Args:
        of: A plan, or its topology.
    """
    ranks = of.topology if isinstance(of, Plan) else of
    return Picture(_finding(ranks), lambda: _draw(ranks), _table(ranks))


def _draw(of: Topology) -> Figure:
    from matplotlib.patches import Rectangle

    drawn = list(of.mesh_ranks)
    if len(drawn) > MOST:
        drawn = [*drawn[: MOST - 1], drawn[-1]]
    rows = max(2, len(drawn))
    tall = rows * TALL + (rows - 1) * GAP
    width = MESH_X + BOX + 2 * MARGIN
    paper, axes = style.page(width, TOP + tall + MARGIN + BOTTOM)
    pale: style.Style = {"facecolor": style.PALE, "edgecolor": style.GREY, "linewidth": 0.8, "zorder": 0}
    for x, name in ((STAGE0_X, f"rank {STAGE0_RANK}, stage 0"), (MESH_X, "mesh, stage 1")):
        axes.add_patch(Rectangle((x - MARGIN, TOP - MARGIN), BOX + 2 * MARGIN, tall + 2 * MARGIN, **pale))
        axes.text(x + BOX / 2, 0.3, name, fontsize=13, fontweight="bold", **style.CENTRED)
    first, last = TOP + TALL / 2, TOP + tall - TALL / 2
    _box(axes, STAGE0_X, first, "add noise,\nencode", style.SKY)
    _box(axes, STAGE0_X, last, "decode", style.SKY)
    step = (last - first) / max(1, len(drawn) - 1)
    ys = [first + n * step for n in range(len(drawn))] if len(drawn) > 1 else [(first + last) / 2]
    for rank, y in zip(drawn, ys, strict=True):
        _box(axes, MESH_X, y, f"rank {rank}, {of.role(rank)}\ngenerate (a slice)", style.ORANGE)
    for upper, lower, rank in zip(ys, ys[1:], drawn[1:], strict=False):
        x = MESH_X + BOX * 0.35
        _arrow(axes, (x, upper + TALL / 2), (x, lower - TALL / 2), style.ORANGE)
        ends = (x + 0.7, upper + TALL / 2), (x + 0.7, lower - TALL / 2)
        _arrow(axes, *ends, style.PURPLE, "<|-|>")
        if rank - 1 not in drawn:
            axes.text(x + 1.3, (upper + lower) / 2, "…", fontsize=16, **style.CENTRED)
    between = STAGE0_X + BOX, MESH_X
    _arrow(axes, (between[0], first), (between[1], ys[0] - 0.12), style.BLUE)
    _arrow(axes, (between[1], ys[0] + 0.12), (between[0], last), style.GREEN)
    middle = sum(between) / 2
    axes.text(middle, first - 0.24, "envelope", fontsize=12, **style.CENTRED)
    axes.text(middle + 0.3, (ys[0] + last) / 2 + 0.3, "result", fontsize=12, **style.CENTRED)
    for y, name in ((first, "clip,\nchunk by\nchunk"), (last, "denoised\nclip")):
        axes.text(0.65, y, name, fontsize=12, **style.CENTRED)
    _arrow(axes, (1.25, first), (STAGE0_X, first), "black")
    _arrow(axes, (STAGE0_X, last), (1.25, last), "black")
    if len(drawn) > 1:
        broadcast = style.line_key("the leader's broadcast", color=style.ORANGE, linewidth=3)
        sums = style.line_key("sums of the slices, both ways", color=style.PURPLE, linewidth=3)
        paper.set_figheight(paper.get_figheight() + 0.45)
        axes.set_ylim(TOP + tall + MARGIN + BOTTOM + 0.45, 0)
        style.legend_below(paper, [broadcast, sums], ncols=2)
    return paper


def _box(axes: Axes, x: float, y: float, text: str, colour: str) -> None:
    from matplotlib.patches import Rectangle

    look: style.Style = {"facecolor": colour, "edgecolor": "black", "linewidth": 1.0, "zorder": 3}
    axes.add_patch(Rectangle((x, y - TALL / 2), BOX, TALL, **look))
    axes.text(x + BOX / 2, y, text, fontsize=12, zorder=5, **style.CENTRED)


def _arrow(
    axes: Axes, tail: tuple[float, float], head: tuple[float, float], colour: str, heads: str = "-|>"
) -> None:
    look: style.Style = {"linewidth": 3.0, "mutation_scale": 18, "zorder": 4, "arrowstyle": heads}
    style.arrow(axes, tail, head, color=colour, **look)


def _table(of: Topology) -> Table:
    mesh = named_ranks(of.mesh_ranks)
    rows = [
        ["adds noise to a chunk of the clip, encodes it", f"rank {STAGE0_RANK}"],
        ["sends the envelope to the leader", f"rank {STAGE0_RANK} to rank {LEADER_RANK}"],
        *([["broadcasts it in the mesh", f"rank {LEADER_RANK}"]] if of.mesh_size > 1 else []),
        ["generate, each with a slice of the weights, and add up", mesh],
        ["sends the result back", f"rank {LEADER_RANK} to rank {STAGE0_RANK}"],
        ["decodes it", f"rank {STAGE0_RANK}"],
    ]
    return Table(["step", "who"], rows)


def _finding(of: Topology) -> str:
    passes = "which broadcasts it to the rest of the mesh; " if of.mesh_size > 1 else ""
    who = named_ranks(of.mesh_ranks)
    generates = f"{who} generate together" if of.mesh_size > 1 else f"{who} generates"
    return (
        f"Rank {STAGE0_RANK} encodes a chunk and sends it to rank {LEADER_RANK}, the leader, {passes}"
        f"{generates}; the leader sends the result back to rank {STAGE0_RANK}, which decodes it."
    )
