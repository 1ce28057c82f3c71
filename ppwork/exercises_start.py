"""Exercises of the first lesson (00): who is in which group, which backend a run takes, what is right."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, Any

from ppwork.plan import Plan
from ppwork.topology import GROUP_ORDER, Topology

if TYPE_CHECKING:
    from ppwork.answers import Answer


def _members(answer: Answer) -> str:
    thoughts = dict.fromkeys(("mesh_pg", "tp_pg"), "Rank 0 is outside the mesh, which begins with rank 1.")
    thoughts |= dict.fromkeys(("down_pg", "up_pg"), "A link has two ends: rank 0, and the leader.")
    thoughts["world_pg"] = "The world is rank 0 and the mesh: one larger than the mesh."
    for group, mesh_size in product(("world_pg", *GROUP_ORDER), (1, 2, 4)):
        right = list(Topology(mesh_size).ranks(group))
        found = answer(group, mesh_size)
        if not isinstance(found, list | tuple) or sorted(found) != right:
            case = f"For {group} with a mesh of {mesh_size} you gave {found!r}, expected {right}."
            return f"{case} {thoughts[group]}"
    return ""


BACKENDS: tuple[tuple[str, int, int, str, str], ...] = (
    ("auto", 3, 3, "nccl", "Every rank has its own GPU, and auto takes NCCL then."),
    ("auto", 3, 0, "gloo", "gloo needs no GPU at all."),
    ("auto", 3, 2, "gloo", "Two ranks would have to share a GPU: a GPU for each rank, rank 0 too, or none."),
    ("gloo", 3, 8, "gloo", "Who asks for gloo gets gloo."),
    ("nccl", 3, 4, "nccl", "It was asked for, and it can be had."),
    (
        "nccl",
        3,
        2,
        "refused",
        "It was asked for by name and cannot be had: another one would be a surprise.",
    ),
)
"""What was asked for, ranks, GPUs, what the launcher does, and why."""


def _backend(answer: Answer) -> str:
    for asked, ranks, gpus, right, thought in BACKENDS:
        found = answer(asked, ranks, gpus)
        if found != right:
            case = f"For {asked!r}, {ranks} ranks and {gpus} GPUs you gave {found!r}, expected {right!r}."
            return f"{case} {thought}"
    return ""


def _summary(max_abs_diff: float | None, verified: int = 6) -> dict[str, Any]:
    return {"chunks": 6, "verified_chunks": verified, "max_abs_diff": max_abs_diff}


TOLERANCE = Plan().tolerance
RESULTS: tuple[tuple[dict[str, Any], int, bool, str], ...] = (
    (_summary(0.0), 1, True, "All chunks, and no difference."),
    (_summary(TOLERANCE / 100), 2, True, "Sums that are split over two ranks are rounded in another order."),
    (_summary(TOLERANCE * 100), 2, False, "Rounding is in the last bits; this is far more."),
    (
        _summary(TOLERANCE / 100),
        1,
        False,
        "A mesh of one splits no sum, so there is no rounding to allow for.",
    ),
    (_summary(0.0, verified=5), 2, False, "A chunk that was not compared is not right yet: count them."),
    (_summary(None), 2, False, "No number: shapes or counts differed, and there was nothing to subtract."),
    (_summary(TOLERANCE), 2, True, "At most the tolerance: the bound itself is still allowed."),
)
"""A run's figures, its mesh size, whether it is right, and why."""


def _is_right(answer: Answer) -> str:
    for summary, mesh_size, right, thought in RESULTS:
        found = answer(dict(summary), mesh_size)
        if found is not right:
            case = f"For {summary} with a mesh of {mesh_size} you gave {found!r}, expected {right}."
            return f"{case} {thought}"
    return ""


START = {"00.1": _members, "00.2": _backend, "00.3": _is_right}
"""Lesson and number; each returns a hint, or nothing when the answer is right."""
