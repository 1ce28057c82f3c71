"""Exercises of the lesson on failures (08)."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from itertools import product

from ppwork.lab.exercises.answers import Case, exercise, number_case
from ppwork.lab.exercises.attempts import Attempt, Programs, program

TIMES_S = ((60.0, 5.0), (10.0, 2.0), (3.0, 5.0))
"""Of a transfer, and without a pulse."""


@exercise
def _known_within() -> Iterator[Case]:
    closed = "The system closes the connections of a process that died; no timeout has to pass."
    for (timeout_s, pulse_s), has_pulse in product(TIMES_S, (True, False)):
        killed = ("killed", timeout_s, pulse_s, has_pulse)
        yield number_case(killed, 0.0, {timeout_s: closed, pulse_s: closed})
        stopped = ("stopped", timeout_s, pulse_s, has_pulse)
        habits = {
            0.0: "The system keeps the connections of a stopped process open.",
            timeout_s: "There is a pulse, and its time is the shorter one.",
            pulse_s: "A transfer has a timeout of its own, and here it passes first."
            if has_pulse
            else "Without a pulse nobody keeps that time.",
        }
        yield number_case(stopped, min(pulse_s, timeout_s) if has_pulse else timeout_s, habits)


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


FUNCTIONS = {"08.1": _known_within, "08.3": _cause}
PROGRAMS: Programs = {"08.2": _only_own_work, "08.4": _nobody_left}
