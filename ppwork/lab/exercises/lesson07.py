"""Exercises of the lesson on the mesh (07): who is late, a refusal all hear of, a layer on two ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

from ppwork.lab.exercises.answers import TriedCall, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, first_of, program
from ppwork.launcher.script import ScriptRun

LATE = {
    (5, 1): {0, 1, 3},
    (5, 3): {1, 3},
    (8, 1): {0, 1, 3, 5, 7},
    (9, 2): {0, 2, 6},
    (9, 8): {0, 8},
    (6, 5): {1, 5},
    (4, 0): {0, 1, 2, 3},
}
"""Who comes back late from a broadcast, by the number of ranks and the one that sleeps."""
MESHED = 3
"""Ranks of the program with a leader and a follower."""


@exercise
def _late_ranks() -> Iterator[TriedCall]:
    for (size, sleeper), right in LATE.items():
        thought = partial(_about_late, sleeper, right)
        yield TriedCall(f"For {size} ranks and the sleeper {sleeper}", (size, sleeper), right, thought)


def _about_late(sleeper: int, right: set[int], given: Any) -> str:  # noqa: ANN401  whatever a learner returns
    if not isinstance(given, set | frozenset):
        return "A set is asked for."
    if sleeper not in given:
        return "The sleeper starts its clock before it sleeps, so it is late, too."
    sender = min(right)
    if sender not in given:
        return f"Rank {sender} sends to the sleeper, and its call returns when all its sends are complete."
    if right - given:
        return "A rank that gets its copy from a late rank is late, and so is every rank that it sends to."
    return "Nobody else sends to the sleeper or gets its copy through it: a broadcast is no barrier."


Matrix = list[list[float]]
X: Matrix = [[1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.0, 2.0]]
"""The input of both programs: two rows of four features."""
WEIGHT: Matrix = [[float(4 * row + column) for column in range(4)] for row in range(4)]
BIAS = [1.0, 2.0, 3.0, 4.0]
COLLECTED = ("all_gather", "all_gather_into_tensor", "all_gather_single", "all_gather_object", "gather")
SUMMED = ("all_reduce", "reduce", "reduce_scatter", "reduce_scatter_tensor", "reduce_scatter_single")
PART_BYTES = 16
"""Of the outputs that one of two ranks computes: two rows of two float32."""


def _linear(x: Matrix, weight: Matrix, bias: list[float]) -> Matrix:
    return [[sum(map(float.__mul__, row, w)) + b for w, b in zip(weight, bias, strict=True)] for row in x]


def _columns(matrix: Matrix, half: int) -> Matrix:
    return [row[2 * half : 2 * half + 2] for row in matrix]


def _added(left: Matrix, right: Matrix) -> Matrix:
    return [[a + b for a, b in zip(*rows, strict=True)] for rows in zip(left, right, strict=True)]


NO_BIAS = [0.0] * 4
Y = _linear(X, WEIGHT, BIAS)
"""What both programs have to print."""


def _given(attempt: Attempt, rank: int) -> object:
    """Return what a rank printed after ``y``, read as Python; nothing when it printed none."""
    for line in attempt.lines(rank):
        if line.startswith("y "):
            try:
                return ast.literal_eval(line[2:])
            except (ValueError, SyntaxError):
                return line[2:]
    return None


def _looked_at(attempt: Attempt, habits: Mapping[str, list[object]]) -> Iterator[str]:
    """Yield a hint for each rank whose ``y`` is not the whole layer's.

    Args:
        attempt: The program that was run.
        habits: What to think of, and the wrong results that it explains: one, or one of each rank.
    """
    for rank in range(attempt.nproc):
        given = _given(attempt, rank)
        if given is None:
            yield f"Rank {rank} printed no line that begins with `y`: keep the program's last lines."
        elif given != Y:
            why = next((hint for hint, results in habits.items() if given in results), "")
            yield f"Rank {rank} has y = {given}; the whole layer gives {Y}. {why}".rstrip()


@program(ranks=2)
def _by_columns(attempt: Attempt) -> Iterator[str]:
    parts = [_columns(Y, half) for half in (0, 1)]
    whole = _linear(X, WEIGHT, NO_BIAS)
    transposed = [list(column) for column in zip(*WEIGHT, strict=True)]
    yield from _looked_at(
        attempt,
        {
            "The parts lie below each other; each rank has two outputs of every row of x.": [
                parts[0] + parts[1]
            ],
            "That is this rank's half of the outputs: collect the other half with `all_gather`.": [*parts],
            "The halves were added; they are different outputs and belong side by side: `all_gather`, not "
            "`all_reduce`.": [_added(*parts)],
            "The bias is missing: each rank adds the entries of its own outputs, `bias[mine]`.": [whole],
            "The outputs are those of the transposed weight: `F.linear` takes a row of it for each output.": [
                _linear(X, transposed, BIAS)
            ],
            "The halves changed places: rank 0 has the first outputs.": [
                [right + left for left, right in zip(*parts, strict=True)]
            ],
        },
    )
    for rank in range(attempt.nproc):
        collected = attempt.calls(rank, *COLLECTED)
        if not collected:
            yield (
                f"y is right, but rank {rank} called no `all_gather`: both ranks computed all four outputs. "
                "Rank r is to use only rows 2r and 2r + 1 of `weight`, and their bias."
            )
        elif any(part.size > PART_BYTES for part in collected[0].begun.parts):
            yield f"y is right, but rank {rank} gave more than its two outputs to `{collected[0].name}`."


@program(ranks=2)
def _by_rows(attempt: Attempt) -> Iterator[str]:
    parts = [_linear(_columns(X, half), _columns(WEIGHT, half), NO_BIAS) for half in (0, 1)]
    zero = [[0.0] * 4] * 2
    bias = _linear(zero, WEIGHT, BIAS)
    yield from _looked_at(
        attempt,
        {
            "Every output is too large by its bias. How often was it added?": [_added(Y, bias)],
            "Every output is too small by its bias.": [_linear(X, WEIGHT, NO_BIAS)],
            "Twice the whole layer: both ranks computed all of it, and then the sum added them.": [
                _added(Y, Y)
            ],
            "That is this rank's share of the outputs: add the shares of both ranks with `all_reduce`.": [
                part for share in parts for part in (share, _added(share, bias))
            ],
        },
    )
    for rank in range(attempt.nproc):
        sums = attempt.calls(rank, *SUMMED)
        if not sums:
            yield (
                f"y is right, but rank {rank} called no `all_reduce`: both ranks used all four inputs. "
                "Rank r is to use only columns 2r and 2r + 1, of `x` and of `weight`."
            )
        elif len(sums) > 1:
            yield f"y is right, but rank {rank} summed {len(sums)} times: one sum is enough."


ENDED = ["chunk 0 refused", "chunk 1 done"]
"""What each rank of the mended program prints."""


def _told(run: ScriptRun) -> str:
    """Say who was not told that chunk 0 was refused; this is asked of programs that stand still as well."""
    if run.nproc != MESHED:
        return ""
    said = {rank: Attempt(run).lines(rank) for rank in range(MESHED)}
    if ENDED[0] not in said[1]:
        if run.failure is not None:
            return ""  # its diagnosis says more
        return (
            "The leader, rank 1, printed no `chunk 0 refused`: keep the `try`, and the last line of the loop."
        )
    if ENDED[0] not in said[2]:
        return (
            "Rank 2 was not told that chunk 0 is refused. It waits in a broadcast of `mesh`: no other "
            "call can reach it. What can the leader broadcast, for a good envelope and for a bad one?"
        )
    if ENDED[0] not in said[0]:
        return (
            "Rank 2 knows. Rank 0 was not told: it waits in `recv` for a message of rank 1. Which message "
            "can always come first?"
        )
    return ""


@program(ranks=MESHED)
def _ends(attempt: Attempt) -> Iterator[str]:
    for rank in range(MESHED):
        if attempt.lines(rank) != ENDED:
            yield f"Rank {rank} printed {attempt.lines(rank)}, not {ENDED}."


FUNCTIONS = {"07.1": _late_ranks}
PROGRAMS: Programs = {"07.2": first_of(_told, _ends), "07.3": _by_columns, "07.4": _by_rows}
