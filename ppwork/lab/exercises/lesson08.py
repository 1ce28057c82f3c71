"""Exercises of the lesson on failures (08)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

from ppwork.lab.exercises.answers import Case, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, program

NORMAL_S = ((0.5, 1.5, 4.0), (3.0, 1.0, 20.0), (0.5, 4.0, 2.0), (3.0, 2.5, 3.25), (1.0, 1.0, 5.0))
"""Of a job in order: longest gap of its pulse, longest step, longest wait in a transfer."""


def _times(gap_s: float, step_s: float, wait_s: float) -> tuple[float, float, float]:
    freeze_s = 2 * gap_s
    stall_s = 2 * step_s if 2 * step_s > freeze_s else freeze_s + 1
    return freeze_s, stall_s, 2 * wait_s if 2 * wait_s > stall_s else stall_s + 1


@exercise
def _three_times() -> Iterator[Case]:
    for normal in NORMAL_S:
        right = _times(*normal)

        def thought(given: Any, right: tuple[float, ...] = right) -> str:  # noqa: ANN401
            return _of_times(given, right)

        yield Case(f"For {normal}", normal, right, thought)


def _of_times(given: Any, right: tuple[float, ...]) -> str:  # noqa: ANN401  whatever a learner's function returns
    if not isinstance(given, tuple) or len(given) != len(right):
        return "Return three times: freeze_s, stall_s, timeout_s."
    freeze_s, stall_s, timeout_s = given
    if timeout_s <= stall_s:
        return "The rank that waits would give up before the rank that is stuck has said so."
    if stall_s <= freeze_s:
        return "stall_s is not above freeze_s: a rank that is stopped is to be found first."
    if freeze_s != right[0]:
        return "A pulse that was late once in a job in order may be late again: twice its longest gap."
    return "Twice what is normal; only where that is not above the time before, a second more than that one."


KILL, TERM = -int(signal.SIGKILL), -int(signal.SIGTERM)
LEFT_BEHIND: dict[str, tuple[dict[int, tuple[float, str]], dict[int, int], int]] = {
    "Who speaks first is who noticed first; a closed connection says that somebody else is in trouble.": (
        {0: (5.001, "TerminalNotice"), 1: (5.0, "StageError"), 2: (4.998, "PeerLostError")},
        {0: 3, 1: 1, 2: 3},
        1,
    ),
    "All who spoke report symptoms. Is there a rank that could not speak?": (
        {0: (7.02, "TerminalNotice"), 1: (7.0, "PeerLostError")},
        {0: 3, 1: 3, 2: KILL},
        2,
    ),
    "SIGTERM is torchrun's, for the survivors of the first failure: those ranks are in order.": (
        {0: (9.0, "StageError")},
        {0: 1, 1: TERM, 2: TERM},
        0,
    ),
    "PeerFrozenError says that another rank stands still: one more symptom.": (
        {0: (4.01, "PeerFrozenError"), 1: (4.0, "PeerFrozenError")},
        {0: 3, 1: 3, 2: KILL},
        2,
    ),
    "Two ranks are silent, and one of them got torchrun's SIGTERM: it was in order.": (
        {0: (6.0, "PeerLostError")},
        {0: 3, 1: TERM, 2: KILL},
        2,
    ),
    "A rank that left with code 0 is suspect only where no silent one ended badly.": (
        {1: (8.0, "PeerLostError")},
        {0: 0, 1: 3, 2: KILL},
        2,
    ),
}
"""Records by rank (when, error), exit codes by rank, and the cause, by what to think of."""


@exercise
def _cause() -> Iterator[Case]:
    for thought, (records, codes, right) in LEFT_BEHIND.items():
        yield Case(f"For records {records} and exit codes {codes}", (records, codes), right, thought)


WARNED = "rank 1 is stuck in chunk"


@program(ranks=2)
def _only_own_work(attempt: Attempt) -> Iterator[str]:
    lines = attempt.lines(0)
    results = [line for line in lines if line.startswith("result")]
    warnings = [line for line in lines if line.startswith(WARNED)]
    if f"{WARNED} 1" in warnings:
        yield "Rank 1 was waiting for rank 0 before chunk 1: when does its own work begin and end?"
    if f"{WARNED} 0" in warnings:
        yield "Chunk 0 takes half a second: is the clock off while rank 1 waits for the next chunk?"
    if f"{WARNED} 2" not in warnings:
        yield "Chunk 2 takes 4 s, and nobody was warned: does the pulse carry the age of the work?"
    if results != [f"result {chunk}" for chunk in range(3)]:
        yield f"Rank 0 printed {results}; expected three results."


@program(ranks=1)
def _nobody_left(attempt: Attempt) -> Iterator[str]:
    last = attempt.lines(0)[-1:]
    if last == ["ranks that outlive the launcher: 2"]:
        yield "Both ranks sleep on. Who calls the function, in which thread, and what ends the process then?"
    if last != ["ranks that outlive the launcher: 0"]:
        yield f"It printed {last}; expected 'ranks that outlive the launcher: 0'."


FUNCTIONS = {"08.2": _three_times, "08.3": _cause}
PROGRAMS: Programs = {"08.1": _only_own_work, "08.4": _nobody_left}
