"""Exercises of the first lesson (00): two numbers change places, a pipeline gets a stage, a run is judged."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ppwork.lab.exercises.answers import TriedCall, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, program
from ppwork.plan import Plan


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
def _is_right() -> Iterator[TriedCall]:
    for thought, (summary, mesh_size, right) in RESULTS.items():
        yield TriedCall(f"For {summary} with a mesh of {mesh_size}", (summary, mesh_size), right, thought)


NEIGHBOURS = [f"my neighbour's number is {11 - rank}" for rank in (0, 1)]
"""What the ranks print when each has the other's number; rank r's own is 10 + r."""


@program(ranks=2)
def _neighbours(attempt: Attempt) -> Iterator[str]:
    printed = {rank: attempt.lines(rank) for rank in (0, 1)}
    for rank in (0, 1):
        peer = 1 - rank
        if NEIGHBOURS[rank] in printed[rank]:
            continue
        if not attempt.received_bytes(rank):
            yield (
                f"Rank {rank} has received nothing. Rank {peer} must call `dist.send`, and rank {rank} "
                f"`dist.recv`; mind who sends first."
            )
        if any(line.endswith(f" {10 + rank}") for line in printed[rank]):
            yield (
                f"Rank {rank} has its own number: it printed `mine`, or rank {peer} received into the tensor "
                "that it sent afterwards. Receive into `neighbours`."
            )
        yield f"Rank {rank} printed {printed[rank]}; expected {NEIGHBOURS[rank]!r}."


RESULT = "the result is 10"


@program(ranks=3)
def _third_stage(attempt: Attempt) -> Iterator[str]:
    lines = attempt.lines(0)
    if "the result is 9" in lines:
        yield (
            "Rank 0 has 9, the square alone: rank 1 still sends it to rank 0. It has to go to rank 2, and "
            "rank 0 receives from rank 2."
        )
    if RESULT not in lines:
        yield f"Rank 0 printed {lines}; expected {RESULT!r}: 3 squared, and 1 more."
    if not attempt.received_bytes(2) or not attempt.sent_bytes(2):
        yield "The number is right, and rank 2 did nothing: it is rank 2 that adds 1."


FUNCTIONS = {"00.3": _is_right}
PROGRAMS: Programs = {"00.1": _neighbours, "00.2": _third_stage}
