"""Exercises of the lesson on the sequential pipeline (04)."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from itertools import pairwise

from ppwork.lab.exercises.answers import TriedCall, exercise, number_case
from ppwork.lab.exercises.attempts import Attempt, Programs, program
from ppwork.records.calls import RECV, SEND

GENERATE_MS, REMEMBER_MS, CHUNKS = 20.0, 10.0, 8
"""Of the program that loses 10 ms; a sleep is never shorter than asked for, so lower limits are sharp."""
BETWEEN_MS = GENERATE_MS + 0.8 * REMEMBER_MS
"""Time between a receive and its result from which on ``remember`` must be in it."""
STAGE_MS, KERNEL_MS, WITHOUT_WAIT_MS = 40, 20, 95
"""Of the program that times a stage: the stage, what its stream runs before it, and what nobody reaches who
does not time rank 0, too."""


@program(2)
def _lost_ms(attempt: Attempt) -> Iterator[str]:
    if f"remembered {CHUNKS} chunks" not in attempt.lines(1):
        yield f"Rank 1 must still print: remembered {CHUNKS} chunks. The work has to be done, once a chunk."
    if f"emitted {CHUNKS} chunks" not in attempt.lines(0):
        yield f"Rank 0 must still print: emitted {CHUNKS} chunks."
    inside, after = _gaps_ms(attempt)
    if not inside or min(inside) < GENERATE_MS:
        yield "Rank 1 answers before it has generated: receive, generate, send, in this order."
    elif min(inside) > BETWEEN_MS:
        yield (
            f"On rank 1 at least {min(inside):.0f} ms pass between receiving a chunk and sending its result; "
            f"generate is {GENERATE_MS:.0f} of them. What else stands there, and does rank 0 need it?"
        )
    elif not after or min(after) < 0.9 * REMEMBER_MS:
        yield "`remember` is in no gap between a result and the next receive, where rank 1 waits anyway."


def _gaps_ms(attempt: Attempt) -> tuple[list[float], list[float]]:
    """Return rank 1's time from each receive to its send, and from there to the next receive."""
    inside, after = [], []
    for first, then in pairwise(attempt.calls(1, "send", "recv", "isend", "irecv", "wait")):
        kinds = [{part.kind for part in call.begun.parts} for call in (first, then)]
        gap_ms = (then.start_ns - (first.end_ns or first.start_ns)) / 1e6
        if SEND in kinds[1]:
            inside.append(gap_ms)
        elif SEND in kinds[0] and RECV in kinds[1]:
            after.append(gap_ms)
    return inside, after


@program(2)
def _stage_ms(attempt: Attempt) -> Iterator[str]:
    words = " ".join(attempt.lines(1)).split()
    numbers = [word for word in words if word.replace(".", "", 1).replace("-", "", 1).isdigit()]
    if not numbers:
        yield f"Rank 1 prints no number. Its line should read such as: stage {STAGE_MS} ms."
        return
    ms = float(numbers[-1])
    if ms < STAGE_MS / 2:
        yield (
            f"{ms:.0f} ms is the time of the launch: submit returns before the stage has run. Put one mark "
            "into the stream before the stage and one behind it, and subtract their times."
        )
    elif ms > WITHOUT_WAIT_MS:
        yield (
            f"{ms:.0f} ms is more than the stage: rank 1 also stood in recv while rank 0 encoded. "
            "Start after the chunk has come."
        )
    elif ms >= STAGE_MS + KERNEL_MS:
        yield (
            f"{ms:.0f} ms is the stage and the {KERNEL_MS} ms that its stream runs before it. Only a mark in "
            "the stream, between the two, begins with the stage."
        )
    elif ms < STAGE_MS:
        yield f"The stage takes at least {STAGE_MS} ms, and you print {ms:.0f}: where does your time begin?"


@exercise
def _slow_chunks() -> Iterator[TriedCall]:
    steady = dict.fromkeys(range(8), 30.0)
    runs = {
        "Which number does one slow chunk hardly move? Compare each chunk with that.": {**steady, 0: 500.0},
        "In a steady run no chunk is slow.": steady,
        "Chunk 0 is so slow that it moves your yardstick, and chunk 5 hides behind it.": {
            **steady,
            0: 2000.0,
            5: 95.0,
        },
    }
    for thought, times in runs.items():
        right = [k for k, ms in times.items() if ms > 3 * statistics.median(times.values())]
        yield TriedCall(f"For {times}", (times,), right, thought)


MEASURED_MS = ((92.0, 14.0, 50.0, 16.0), (80.0, 15.0, 45.0, 15.0), (63.0, 5.0, 50.0, 5.0))
"""Period, encode, generate and decode."""


@exercise
def _faster_network() -> Iterator[TriedCall]:
    for period, encode, generate, decode in MEASURED_MS:
        stages = encode + generate + decode
        transport = period - stages
        habits = {
            period / 2: "The stages take as long as before: only transport gets shorter.",
            transport: "That is the transport as it is. A period has the stages in it as well.",
            transport / 2: "That is the new transport. A period has the stages in it as well.",
            (period + generate) / 2: "Encode and decode are work of rank 0, not transport.",
        }
        yield number_case((period, encode, generate, decode), stages + transport / 2, habits)


FUNCTIONS = {"04.2": _faster_network, "04.3": _slow_chunks}
PROGRAMS: Programs = {"04.1": _lost_ms, "04.4": _stage_ms}
