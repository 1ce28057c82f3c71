"""Exercises of the lesson on the way into the mesh (07)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import product

from ppwork.lab.exercises.answers import Case, exercise, number_case
from ppwork.lab.exercises.attempts import Programs
from ppwork.protocol.topology import GROUP_ORDER, Topology
from ppwork.timeline.costs import Costs, Hop

SIZES = (2, 3, 4, 8, 9, 1)
HOPS_MS = ((1.0, 4.0), (0.5, 2.0))
"""One way between rank 0 and the leader, and a broadcast to a single follower."""


@exercise
def _rounds() -> Iterator[Case]:
    model = Costs.of_links(Hop(), Hop(1.0))
    for size in SIZES:
        hop, stretch = model.broadcast_hop(size)
        habits = {
            size - 1.0: "One after the other it would be so many; but who has it can pass it on.",
            float(size): "The leader has it already, and who has it can pass it on.",
            math.log2(size): "Nobody sends in half a round: round up.",
            1.0: "One call, and in one round the leader reaches a single rank.",
        }
        yield number_case((size,), stretch * hop.ms(0), habits)


@exercise
def _transport() -> Iterator[Case]:
    for (hop_ms, broadcast_ms), size in product(HOPS_MS, SIZES):
        right = Costs.of_links(Hop(hop_ms), Hop(broadcast_ms)).transport_ms(size)
        habits = {
            right - hop_ms: "A chunk goes down, through the mesh, and back up.",
            2 * hop_ms + broadcast_ms: "In a mesh of one nothing is broadcast."
            if size == 1
            else "A larger mesh needs more rounds.",
            2 * hop_ms + (size - 1) * broadcast_ms: "Who has it passes it on: count rounds, not followers.",
            size * 2 * hop_ms + right - 2 * hop_ms: "Rank 0 talks to the leader only, whatever the size.",
        }
        yield number_case((size, hop_ms, broadcast_ms), right, habits)


@exercise
def _missing() -> Iterator[Case]:
    for mesh_size, group in product((2, 3), ("world_pg", *GROUP_ORDER[:2])):
        topology = Topology(mesh_size)
        right = sorted(set(topology.ranks(group)) - set(topology.mesh_ranks))
        thought = (
            "world_pg has all ranks in it, and rank 0 computes no stage 1."
            if right
            else "All members of that group are mesh ranks, and all of those make the call."
        )
        yield Case(f"For {group} and mesh_size={mesh_size}", (group, mesh_size), right, thought)


FUNCTIONS = {"07.1": _rounds, "07.2": _transport, "07.3": _missing}
PROGRAMS: Programs = {}
