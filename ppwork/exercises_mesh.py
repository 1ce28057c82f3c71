"""Exercises of the lesson on the way into the mesh (06)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ppwork.answers import compared
from ppwork.costs import Costs, Hop
from ppwork.topology import GROUP_ORDER, Topology

if TYPE_CHECKING:
    from ppwork.answers import Answer

SIZES = (2, 3, 4, 8, 9, 1)
HOPS_MS = ((1.0, 4.0), (0.5, 2.0))
"""One way between rank 0 and the leader, and a broadcast to a single follower."""


def _rounds(answer: Answer) -> str:
    model = Costs.of_links(Hop(), Hop(1.0))
    for size in SIZES:
        hop, stretch = model.broadcast_hop(size)
        habits = {
            size - 1.0: "One after the other it would be so many; but who has it can pass it on.",
            float(size): "The leader has it already, and who has it can pass it on.",
            math.log2(size): "Nobody sends in half a round: round up.",
            1.0: "One call, and in one round the leader reaches a single rank.",
        }
        hint = compared(answer, (size,), stretch * hop.ms(0), habits)
        if hint:
            return hint
    return ""


def _transport(answer: Answer) -> str:
    for hop_ms, broadcast_ms in HOPS_MS:
        model = Costs.of_links(Hop(hop_ms), Hop(broadcast_ms))
        for size in SIZES:
            right = model.transport_ms(size)
            habits = {
                right - hop_ms: "A chunk goes down, through the mesh, and back up.",
                2 * hop_ms + broadcast_ms: "In a mesh of one nothing is broadcast."
                if size == 1
                else "A larger mesh needs more rounds.",
                2 * hop_ms
                + (size - 1) * broadcast_ms: "Who has it passes it on: count rounds, not followers.",
                size * 2 * hop_ms + right - 2 * hop_ms: "Rank 0 talks to the leader only, whatever the size.",
            }
            habits.pop(right, None)
            hint = compared(answer, (size, hop_ms, broadcast_ms), right, habits)
            if hint:
                return hint
    return ""


def _missing(answer: Answer) -> str:
    for mesh_size in (2, 3):
        of = Topology(mesh_size)
        for group in ("world_pg", *GROUP_ORDER[:2]):
            right = sorted(set(of.ranks(group)) - set(of.mesh_ranks))
            found = answer(group, mesh_size)
            if not isinstance(found, list) or sorted(found) != right:
                thought = (
                    "world_pg has all ranks in it, and rank 0 computes no stage 1."
                    if right
                    else "All members of that group are mesh ranks, and all of those make the call."
                )
                return (
                    f"For {group} and mesh_size={mesh_size} you gave {found!r}, expected {right}. {thought}"
                )
    return ""


MESH = {"06.1": _rounds, "06.2": _transport, "06.3": _missing}
"""Lesson and number; each returns a hint, or nothing when the answer is right."""
