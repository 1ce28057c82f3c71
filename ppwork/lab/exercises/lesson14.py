"""Exercises of the capstone (14): a stream that ends, a split layer, a run by its facts, faults named."""

from __future__ import annotations

import ast
import hashlib
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ppwork.lab.exercises.attempts import Attempt, Programs, program
from ppwork.pictures.source import source_of
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


UP_LATE = (
    "`up_bias` went in after the second layer. Where is it added in `whole`, and which hidden units does a "
    "rank have?"
)
FIRST_HALF = "Both ranks added the first half of `up_bias`. Rank 1 has the other hidden units."
NO_UP = "`up_bias` is missing. It goes in before the `relu`, on each rank its own half."
BIASES = {
    "difference 0.0": "",
    "difference 95.0": UP_LATE,
    "difference 98.0": UP_LATE,
    "difference 3.0": "The difference is the frame, once: it is in the result twice, or not at all.",
    "difference 100.0": "The difference is `down_bias`, once: it is in the result twice, or not at all.",
    "difference 103.0": "The difference is the frame and `down_bias`, once: both are in the result twice, or "
    "not at all.",
    "difference 92.0": FIRST_HALF,
    "difference 89.0": FIRST_HALF,
    "difference 107.0": NO_UP,
    "difference 104.0": NO_UP,
}
"""What a rank prints, and what to think of: of the usual places for a bias or the frame each has its own."""


@program(ranks=2)
def _biases(attempt: Attempt) -> Iterator[str]:
    for rank in range(2):
        if not attempt.calls(rank, "all_reduce"):
            yield f"Rank {rank} made no all_reduce: each rank has half of the weights; a sum is needed."
        lines = attempt.lines(rank)
        yield from filter(None, [BIASES.get(line, "") for line in lines[-1:]])
        if lines[-1:] != ["difference 0.0"]:
            yield (
                f"Rank {rank} printed {lines}; expected 'difference 0.0'. Which bias belongs to the hidden "
                "units, of which a rank has half, and which to the result?"
            )


LEAST_OVERLAP, TWO = 0.3, 2
NEAR = 0.1
"""Share of the prediction by which the period may differ from it."""
APART = 1.15
"""By this factor the period at depth 1 is the longer one; else one stage is all, and any guess hits both."""
OF_THE_LESSON = {"stage0": "b2675ed473fdf140", "stage1": "88eea2976112a409"}
"""Digests of the code of the lesson's own classes, without names and comments."""


def _capstone(runs: Sequence[Run]) -> str:
    """Look at the run that is to be finished, the last one, and at the same plan at depth 1 before it."""
    return next(_missing(runs[-1]), "") or next(_not_predicted(runs), "")


def _missing(run: Run) -> Iterator[str]:
    plan, summary = run.plan, run.summary
    if run.failure is not None or not summary.get("chunks"):
        yield "The run did not finish: `pp.diagnose(run)` says why."
    yield from _not_ones_own(plan.stage0, plan.stage1)
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


def _not_predicted(runs: Sequence[Run]) -> Iterator[str]:
    plan = runs[-1].plan
    predicted_ms = plan.options.get("predicted_ms")
    if not (isinstance(predicted_ms, list) and len(predicted_ms) == TWO):
        yield (
            'The plan has no two predictions: options={..., "predicted_ms": [...]}, the periods at depth 1 '
            "and at this depth in milliseconds, written down before the runs."
        )
        return
    same = [(run.plan.stage0, run.plan.stage1, run.plan.options) for run in runs]
    if len(runs) != TWO or runs[0].plan.in_flight_depth != 1 or same[0] != same[1]:
        yield (
            "The first of two runs is to be the same plan at depth 1: "
            "`pp.launch(plan.replace(in_flight_depth=1, verify=False))`."
        )
        return
    periods_ms = [run.summary.get("period_ms") or 0.0 for run in runs]
    for run, predicted, period in zip(runs, predicted_ms, periods_ms, strict=True):
        if abs(period - predicted) > NEAR * predicted:
            yield (
                f"At depth {run.plan.in_flight_depth} you predicted a period of {predicted:g} ms, and it was "
                f"{period:.1f} ms. Which is the longest: stage 0, stage 1, all of a chunk over the depth, or "
                "the distance of two frames of the source? And what was the transport of the lesson's run "
                "at depth 1?"
            )
    if periods_ms[0] < APART * periods_ms[1]:
        yield (
            f"The periods are {periods_ms[0]:.0f} and {periods_ms[1]:.0f} ms: one stage is nearly all of it, "
            "and overlap gains nothing. Let both stages take time that counts."
        )


def _not_ones_own(stage0: str, stage1: str) -> Iterator[str]:
    for kind, path, what in (("stage1", stage1, "generator"), ("stage0", stage0, "source")):
        if path.startswith("ppwork."):
            yield f"{path} ships with the library: both stages are to be your own."
        body = _class_of(path).body
        if _digest(body) == OF_THE_LESSON[kind]:
            yield f"The {what} is the lesson's: write your own in a cell with %%stages."
    if not _remembered(_class_of(stage1)):
        yield (
            "The generator keeps nothing from one chunk to the next. Keep the last result in `self`, and add "
            "half of it to the next frame."
        )


def _class_of(path: str) -> ast.ClassDef:
    (found,) = ast.parse(source_of(path)).body
    assert isinstance(found, ast.ClassDef)  # noqa: S101  a stage is a class, or the run had not started
    return found


def _digest(body: list[ast.stmt]) -> str:
    return hashlib.sha256("\n".join(map(ast.unparse, body)).encode()).hexdigest()[:16]


def _remembered(stage: ast.ClassDef) -> set[str]:
    """Return the attributes of ``self`` that are read, outside ``__init__``, before they get a new value."""
    first: dict[type, dict[str, int]] = {ast.Load: {}, ast.Store: {}}
    for method in stage.body:
        if not isinstance(method, ast.FunctionDef) or method.name == "__init__":
            continue
        for node in ast.walk(method):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                lines = first.setdefault(type(node.ctx), {})
                lines[node.attr] = min(node.lineno, lines.get(node.attr, node.lineno))
    read, written = first[ast.Load], first[ast.Store]
    return {name for name in read.keys() & written.keys() if read[name] <= written[name]}


KINDS = "raises", "loops", "is killed", "leaves a sum out"
RECORDS = {
    5: "Every step makes one sum. Which rank ended its step without one?",
    6: "A rank that raises or is stuck writes. Which mesh rank wrote none, and whose connection broke?",
    7: "Two mesh ranks wrote. Which of them wrote of an error in its own step, and which only heard of it?",
    9: "Two mesh ranks wrote. Which of them wrote of its own step, and which of the other one's connection?",
}
"""Numbers that a neighbour gave, of each kind one, on both mesh ranks; and what to look for in records."""
NAMED = {5: 1, 6: 1, 7: 1, 9: None}
"""The rank that rank 0's record of a number names: the leader that told it, guilty or not, or nobody."""


def fault_of(number: int) -> tuple[int, str]:
    """Return rank and kind of the fault that a number draws, as the lesson's stage does."""
    draw = random.Random(f"39145, {number}")  # noqa: S311  the lesson's: no secret, and no formula to read
    kind = KINDS[draw.randrange(len(KINDS))]
    return 1 + draw.randrange(2), kind


def _found(answer: Callable[[int], Any]) -> str:
    for number, look_for in RECORDS.items():
        given, fault = answer(number), fault_of(number)
        if given == (*fault, NAMED[number]):
            continue
        if not (isinstance(given, tuple) and len(given) == 3 and given[1] in KINDS):
            return (
                f"For number {number} you gave {given!r}; asked for are the guilty rank, one of "
                f"{', '.join(KINDS)}, and the rank that rank 0's record names."
            )
        if given[:2] == fault:
            return (
                f"For number {number} rank and kind are right. Which rank does rank 0's record name, as "
                "`rank=`? `None` if it names nobody."
            )
        return f"For number {number} it is not {given[:2]!r}. {look_for}"
    return ""


FUNCTIONS: dict[str, Callable[[Any], str]] = {"14.3": _found}
PROGRAMS: Programs = {"14.1": _drained, "14.2": _biases}
RUNS: dict[str, Callable[[Sequence[Run]], str]] = {"14.4": _capstone}
