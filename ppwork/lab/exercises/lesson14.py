"""Exercises of the capstone (14): a stream that ends, a split layer, a run by its facts, faults named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ppwork.lab.exercises.attempts import Attempt, Programs, program
from ppwork.records.run import Run

EMITTED = [f"emitted {k}" for k in range(4)]


@program(ranks=2)
def _drained(attempt: Attempt) -> Iterator[str]:
    lines = attempt.lines(0)
    if lines == EMITTED[: len(lines)] and len(lines) < len(EMITTED):
        yield (
            f"Rank 0 emitted {len(lines)} of 4 chunks. The source has ended; which of its chunks are "
            "still in `unfinished`?"
        )
    if lines != EMITTED:
        yield f"Rank 0 printed {lines}; expected {EMITTED}."
    if attempt.lent_at_once(0) < 4:
        yield "Only one chunk at a time was on its way: keep two unfinished, as the program did."


@program(ranks=2)
def _bias_once(attempt: Attempt) -> Iterator[str]:
    for rank in range(2):
        if not attempt.calls(rank, "all_reduce"):
            yield f"Rank {rank} made no all_reduce: each rank has half of the weights; a sum is needed."
        lines = attempt.lines(rank)
        if lines[-1:] == ["difference 100.0"]:
            yield "The difference is the bias, once: both ranks have added it before the sum."
        elif lines[-1:] != ["difference 0.0"]:
            yield (
                f"Rank {rank} printed {lines}; expected 'difference 0.0'. Of what is `total` the sum, and "
                "what is the same on every rank?"
            )


LEAST_OVERLAP = 0.3


def _capstone(run: Run) -> str:
    return next(_missing(run), "")


def _missing(run: Run) -> Iterator[str]:
    plan, summary = run.plan, run.summary
    if run.failure is not None or not summary.get("chunks"):
        yield "The run did not finish: `pp.diagnose(run)` says why."
    if plan.stage0.startswith("ppwork.") or plan.stage1.startswith("ppwork."):
        yield f"{plan.stage0} or {plan.stage1} ships with the library: both stages are to be your own."
    if plan.chunks is not None:
        yield f"The plan says {plan.chunks} chunks. A live source ends by itself: leave `chunks` out of it."
    if plan.mesh_size < 2:
        yield "One mesh rank has nothing to sum: mesh_size=2."
    if summary.get("verified_chunks") is None:
        yield "Nobody has compared it with one process: verify=True in the plan."
    if plan.in_flight_depth < 2:
        yield "At depth 1 rank 0 waits for each result; in_flight_depth=2 is the first that overlaps."
    if summary["overlap_score"] < LEAST_OVERLAP:
        score = summary["overlap_score"]
        yield (
            f"The overlap score is {score:.2f}, less than {LEAST_OVERLAP}. Both stages have to take some "
            "time; in the timeline, what does rank 0 do while the mesh generates?"
        )


KINDS = "raises", "loops", "is killed", "leaves a sum out"
NUMBERS = 5, 6, 7, 9
"""Numbers that a neighbour gave: of each kind one, on both mesh ranks."""


def fault_of(number: int) -> tuple[int, str]:
    """Return rank and kind of the fault that a number draws, as the lesson's stage does."""
    return 1 + number * 5 // 2 % 2, KINDS[number * 7 // 3 % 4]


def _found(answer: Callable[[int], Any]) -> str:
    for number in NUMBERS:
        given, (rank, kind) = answer(number), fault_of(number)
        if given == (rank, kind):
            continue
        if not (isinstance(given, tuple) and len(given) == 2 and given[1] in KINDS):
            return (
                f"For number {number} you gave {given!r}; a rank and one of {', '.join(KINDS)} is asked for."
            )
        if given[0] != rank:
            return (
                f"For number {number} it is not rank {given[0]}. Run it: the headline of the diagnosis names "
                "the rank that failed first; the others only heard of it."
            )
        return (
            f"For number {number} the rank is right, and the kind is not {given[1]!r}. Is there a line of "
            "yours in the diagnosis, a record at all, or a comparison of calls?"
        )
    return ""


FUNCTIONS: dict[str, Callable[[Any], str]] = {"14.3": _found}
PROGRAMS: Programs = {"14.1": _drained, "14.2": _bias_once}
RUNS: dict[str, Callable[[Run], str]] = {"14.4": _capstone}
