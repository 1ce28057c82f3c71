"""Exercises of the lesson on hangs (09): three programs that stand still, and who is to blame."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ppwork.lab.exercises.answers import TriedCall, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, ends_well, first_of, program

WAITS = {
    "Rank 0 waits for rank 2, which waits for rank 1: go on until a rank waits for nobody.": (
        {0: [2], 1: [], 2: [1]},
        0,
        1,
    ),
    "A rank that waits for nobody is itself at the end.": ({0: [], 1: [0]}, 0, 0),
    "Rank 0 waits for nobody, too, but nobody waits for it: follow the arrows.": (
        {0: [], 1: [2], 2: []},
        1,
        2,
    ),
    "0 waits for 1, and 1 for 0: no arrow leads to a rank that waits for nobody.": (
        {0: [1], 1: [0]},
        0,
        None,
    ),
    "The circle need not contain the rank where you began: note the ranks that you have met.": (
        {0: [1], 1: [2], 2: [1]},
        0,
        None,
    ),
    "Both arrows of rank 0 lead to a rank that waits for nobody: name the lowest.": (
        {0: [3, 1], 1: [], 2: [0], 3: []},
        2,
        1,
    ),
    "0 and 1 wait for each other, and both for rank 2, which waits for nobody: follow every arrow.": (
        {0: [1, 2], 1: [0, 2], 2: []},
        0,
        2,
    ),
}
"""Who waits for whom, where to begin, and the rank at the end, by the thought."""


@exercise
def _to_blame() -> Iterator[TriedCall]:
    for thought, (waits, start, end) in WAITS.items():
        yield TriedCall(f"For {waits}, from rank {start},", (waits, start), end, thought)


@program(ranks=3)
def _same_total(attempt: Attempt) -> Iterator[str]:
    totals = {rank: attempt.lines(rank)[-1:] for rank in range(3)}
    if any(lines == ["total 9"] for lines in totals.values()):
        yield "A batch was left out: ranks 0 and 1 have two, and both of them count."
    wrong = [rank for rank, lines in totals.items() if lines != ["total 15"]]
    if wrong:
        yield f"Rank {wrong[0]} printed {totals[wrong[0]]}; expected 'total 15'."


MEANS = [f"step {step} mean loss {step + 1.0}" for step in range(3)]


@program(ranks=3)
def _means(attempt: Attempt) -> Iterator[str]:
    if attempt.lines(0) != MEANS:
        yield f"Rank 0 printed {attempt.lines(0)}; expected {MEANS}."
    if any(attempt.lines(rank) for rank in (1, 2)):
        yield "Only rank 0 is to print."


@program(ranks=3)
def _two_numbers(attempt: Attempt) -> Iterator[str]:
    wanted = ["received 23 and 11"]
    if attempt.lines(0) != wanted:
        yield f"Rank 0 printed {attempt.lines(0)}; expected {wanted}. All three messages are to stay."
    if attempt.received_bytes(0) != 16 or attempt.received_bytes(2) != 8:
        yield "All three messages are to stay: move lines, and leave none out."


FUNCTIONS: dict[str, Callable[[Any], str]] = {"09.4": _to_blame}
PROGRAMS: Programs = {
    "09.1": first_of(
        ends_well("How often has each rank run the line with `all_reduce`? How can all agree on a number?"),
        _same_total,
    ),
    "09.2": first_of(
        ends_well("In which line does rank 0 stand, in which rank 1? What does `mean` call?"),
        _means,
    ),
    "09.3": first_of(
        ends_well("Draw an arrow from each rank to the one it waits for. A `send` on gloo waits, too."),
        _two_numbers,
    ),
}
