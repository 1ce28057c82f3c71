"""Exercises of the lesson on state (10): stale results, what a flush drops, and a mesh that is restored."""

from __future__ import annotations

from collections.abc import Iterator

from ppwork.lab.exercises.answers import TriedCall, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, ends_well, first_of, program

DROPPED = {
    "At depth 3 two chunks are in flight when the next one leaves: those from before the flush.": (
        (3, [], [4]),
        [2, 3],
    ),
    "A cut is at a known place of the stream: earlier results are still wanted.": ((3, [4], []), []),
    "At depth 1 nothing is in flight when a chunk leaves.": ((1, [], [4]), []),
    "The stream begins with chunk 0: there is none before it.": ((3, [], [1]), [0]),
    "A chunk that two flushes made stale is dropped once.": ((3, [], [4, 5]), [2, 3, 4]),
    "Only the flush drops something.": ((2, [3], [6]), [5]),
}
"""Depth, cuts and flushes, and what is dropped, by what to think of."""


@exercise
def _dropped() -> Iterator[TriedCall]:
    for thought, (arguments, right) in DROPPED.items():
        depth, cuts, flushes = arguments
        yield TriedCall(f"For depth {depth}, cuts {cuts} and flushes {flushes}", arguments, right, thought)


SHOWN = [f"show chunk {chunk}" for chunk in (0, 1, 4, 5, 6)]
DROPS = [f"drop chunk {chunk}" for chunk in (2, 3)]


@program(ranks=2)
def _current_only(attempt: Attempt) -> Iterator[str]:
    lines = attempt.lines(0)
    shown = [line.partition(":")[0] for line in lines if line.startswith("show")]
    dropped = [line for line in lines if line.startswith("drop")]
    if set(shown) & {"show chunk 2", "show chunk 3"}:
        yield "A result of the old epoch is shown. Which number in a result says when its chunk was sent?"
    if missing := [line for line in SHOWN if line not in shown]:
        yield f"There is no line '{missing[0]}'. Which epoch do the results have that are wanted?"
    if len(attempt.calls(0, "recv")) != len(SHOWN) + len(DROPS):
        yield "Rank 1 sends seven results, and each needs its receive, also where nobody wants it."
    if shown != SHOWN or dropped != DROPS:
        yield f"Rank 0 printed {shown} and {dropped}; expected {SHOWN} and {DROPS}."


@program(ranks=2)
def _goes_on(attempt: Attempt) -> Iterator[str]:
    for rank in range(attempt.nproc):
        said = dict(line.rpartition(" ")[::2] for line in attempt.lines(rank))
        if said.get("names in the checkpoint") != "4":
            yield (
                f"On rank {rank} the checkpoint has {said.get('names in the checkpoint', 'no')} names; "
                "2 ranks with 2 tensors each need 4."
            )
        if said.get("largest difference") != "0":
            yield (
                f"Rank {rank} goes on, and its results differ. `play` puts a new tensor into the model for "
                "each chunk: which one does `state` hold when it is saved?"
            )


FUNCTIONS = {"10.2": _dropped}
PROGRAMS: Programs = {
    "10.1": first_of(
        ends_well(
            "Rank 1 sends seven results. Who takes the result of chunk 2, while rank 1 stands in `send`?"
        ),
        _current_only,
    ),
    "10.3": _goes_on,
}
