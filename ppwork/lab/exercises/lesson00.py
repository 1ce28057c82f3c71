"""Exercises of the first lesson (00): who is in which group, which backend a run takes, what is right."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

from ppwork.lab.exercises.answers import Case, exercise
from ppwork.lab.exercises.attempts import Programs
from ppwork.plan import Plan
from ppwork.protocol.topology import GROUP_ORDER, Topology


@exercise
def _members() -> Iterator[Case]:
    thoughts = dict.fromkeys(("mesh_pg", "tp_pg"), "Rank 0 is outside the mesh, which begins with rank 1.")
    thoughts |= dict.fromkeys(("down_pg", "up_pg"), "A link has two ends: rank 0, and the leader.")
    thoughts["world_pg"] = "The world is rank 0 and the mesh: one larger than the mesh."
    for group, mesh_size in product(("world_pg", *GROUP_ORDER), (1, 2, 4)):
        right = list(Topology(mesh_size).ranks(group))
        yield Case(f"For {group} with a mesh of {mesh_size}", (group, mesh_size), right, thoughts[group])


BACKENDS = {
    "Every rank has its own GPU, and auto takes NCCL then.": ("auto", 3, 3, "nccl"),
    "gloo needs no GPU at all.": ("auto", 3, 0, "gloo"),
    "Two ranks would have to share a GPU: a GPU for each rank, rank 0 too, or none.": ("auto", 3, 2, "gloo"),
    "Who asks for gloo gets gloo.": ("gloo", 3, 8, "gloo"),
    "It was asked for, and it can be had.": ("nccl", 3, 4, "nccl"),
    "It was asked for by name and cannot be had: another one would be a surprise.": ("nccl", 3, 2, "refused"),
}
"""The asked backend, ranks, GPUs, and what the launcher does, by the reason."""


@exercise
def _backend() -> Iterator[Case]:
    for thought, (asked, ranks, gpus, right) in BACKENDS.items():
        yield Case(f"For {asked!r}, {ranks} ranks and {gpus} GPUs", (asked, ranks, gpus), right, thought)


def _summary(max_abs_diff: float | None, verified: int = 6) -> dict[str, Any]:
    return {"chunks": 6, "verified_chunks": verified, "max_abs_diff": max_abs_diff}


TOLERANCE = Plan().tolerance
RESULTS = {
    "All chunks, and no difference.": (_summary(0.0), 1, True),
    "Sums that are split over two ranks are rounded in another order.": (_summary(TOLERANCE / 100), 2, True),
    "Rounding is in the last bits; this is far more.": (_summary(TOLERANCE * 100), 2, False),
    "A mesh of one splits no sum, so there is no rounding to allow for.": (
        _summary(TOLERANCE / 100),
        1,
        False,
    ),
    "A chunk that was not compared is not right yet: count them.": (_summary(0.0, verified=5), 2, False),
    "No number: shapes or counts differed, and there was nothing to subtract.": (_summary(None), 2, False),
    "At most the tolerance: the bound itself is still allowed.": (_summary(TOLERANCE), 2, True),
}
"""A run's figures, its mesh size, and whether it is right, by the reason."""


@exercise
def _is_right() -> Iterator[Case]:
    for thought, (summary, mesh_size, right) in RESULTS.items():
        yield Case(f"For {summary} with a mesh of {mesh_size}", (summary, mesh_size), right, thought)


FUNCTIONS = {"00.1": _members, "00.2": _backend, "00.3": _is_right}
PROGRAMS: Programs = {}
