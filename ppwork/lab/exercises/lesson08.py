"""Exercises of the lesson on failures (08)."""

from __future__ import annotations

import signal
from collections.abc import Iterator

from ppwork.lab.exercises.answers import TriedCall, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, program

ENDS, WRONG, GOOD = "ends a healthy run", "names the wrong rank", "good"
WATCHED = ("stop (SIGSTOP)", "step", "wait in a transfer")
JUDGED_S = (
    ((5.0, 48.0, 60.0), (0.5, 50.0, 4.0)),
    ((5.0, 70.0, 60.0), (0.5, 50.0, 4.0)),
    ((5.0, 48.0, 60.0), (0.5, 20.0, 55.0)),
    ((1.0, 3.0, 60.0), (1.5, 2.0, 20.0)),
    ((90.0, 100.0, 60.0), (0.5, 2.0, 20.0)),
    ((1.0, 3.0, 10.0), (0.5, 2.0, 12.0)),
    ((1.0, 10.0, 10.0), (0.5, 2.0, 5.0)),
    ((5.0, 70.0, 60.0), (0.5, 2.0, 65.0)),
    ((10.0, 8.0, 60.0), (0.5, 2.0, 20.0)),
)
"""``freeze_s``, ``stall_s`` and ``timeout_s``; longest stop (SIGSTOP), step and wait of a healthy job."""


def _judged(times: tuple[float, ...], normal: tuple[float, ...]) -> str:
    if any(time <= seen for time, seen in zip(times, normal, strict=True)):
        return ENDS
    return GOOD if max(times[:2]) < times[2] else WRONG


@exercise
def _judge() -> Iterator[TriedCall]:
    for times, normal in JUDGED_S:
        right = _judged(times, normal)
        yield TriedCall(f"For {times} and {normal}", (times, normal), right, _thought(right, times, normal))


def _thought(right: str, times: tuple[float, ...], normal: tuple[float, ...]) -> str:
    for what, time, seen in zip(WATCHED, times, normal, strict=True):
        if time <= seen:
            return f"A {what} took {seen:g} s while all was well: which of the limits had passed by then?"
    if right == WRONG:
        return (
            f"The rank that waits gives up after {times[2]:g} s. Who has spoken by then, if a stage hangs "
            "or a process is stopped?"
        )
    if times[0] > times[1]:
        return (
            f"A stopped process is found after {times[0]:g} s, a step that hangs after {times[1]:g} s, "
            f"and a rank that waits gives up after {times[2]:g} s: is it ever the first to speak?"
        )
    return "Each limit is above what is normal, and the cause speaks before the rank that waits."


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
    "SIGTERM is torchrun's, for the survivors of the first failure: those ranks are healthy.": (
        {0: (9.0, "StageError")},
        {0: 1, 1: TERM, 2: TERM},
        0,
    ),
    "PeerFrozenError says that another rank stands still: one more symptom.": (
        {0: (4.01, "PeerFrozenError"), 1: (4.0, "PeerFrozenError")},
        {0: 3, 1: 3, 2: KILL},
        2,
    ),
    "Two ranks are silent, and one of them got torchrun's SIGTERM: it was healthy.": (
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
def _cause() -> Iterator[TriedCall]:
    for thought, (records, codes, right) in LEFT_BEHIND.items():
        yield TriedCall(f"For records {records} and exit codes {codes}", (records, codes), right, thought)


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


FUNCTIONS = {"08.2": _judge, "08.3": _cause}
PROGRAMS: Programs = {"08.1": _only_own_work, "08.4": _nobody_left}
