"""Exercises of the lesson on messages between two ranks (01)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from ppwork.diagnosis.messages import all_in
from ppwork.lab.exercises.answers import TriedCall, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, first_of, program
from ppwork.launcher.script import ScriptRun
from ppwork.process import STOPPED
from ppwork.records.calls import Call

Steps = list[tuple[str, str]]


def _steps(text: str) -> Steps:
    pairs = (step.split() for step in text.split(", "))
    return [(what, buffer) for what, buffer in pairs]


TOUCHED = {
    "The buffer is lent from `isend` until `wait`.": _steps("isend a, write a, wait a"),
    "After its `wait` the buffer is yours again.": _steps("isend a, wait a, write a"),
    "Another buffer than the one that is lent.": _steps("isend a, write b, wait a"),
    "Each buffer has a `wait` of its own.": _steps("isend a, isend b, wait a, write a, write b, wait b"),
    "The second `isend` lends it a second time.": _steps(
        "write a, isend a, wait a, isend a, write a, wait a"
    ),
    "Sent twice, it is lent twice: each `isend` needs a `wait` of its own.": _steps(
        "isend a, isend a, wait a, write a, wait a"
    ),
}
"""Steps of a rank with its buffers, by what to think of."""


def touch_in_flight(steps: Steps) -> int | None:
    """Return the number of the first step that writes to a buffer which is lent; ``None`` if none does."""
    lent: Counter[str] = Counter()
    for number, (what, buffer) in enumerate(steps):
        if what == "write" and lent[buffer]:
            return number
        lent[buffer] += {"isend": 1, "wait": -1}.get(what, 0)
    return None


@exercise
def _first_touch() -> Iterator[TriedCall]:
    for thought, steps in TOUCHED.items():
        yield TriedCall(f"For {steps}", (steps,), touch_in_flight(steps), thought)


PAIR = 2
THREE = [f"received {number}" for number in (1, 2, 3)]


@program(ranks=PAIR)
def _three_at_once(attempt: Attempt) -> Iterator[str]:
    lines = attempt.lines(1)
    lost = attempt.forgotten(0)
    if lost:
        yield f"Nobody waited for {_named(lost[0])}. Wait for each handle once."
    if lines == THREE[2:] * 3:
        yield (
            "All three messages were 3s: the loop filled the one buffer again while gloo still had to read "
            "it. Messages arrive in the order of their `isend`s, so the first 3 is message 1, read too late. "
            "Each message in flight needs a buffer of its own."
        )
    if lines != THREE:
        yield f"Rank 1 printed {lines}; expected {THREE}."
    most = attempt.lent_at_once(0)
    if most < len(THREE):
        yield (
            f"The numbers are right, but at most {most} of the three was under way at a time: there is a "
            "`wait` (or a `send`) before the next `isend`. Start all three, then wait."
        )


RING = 3


@program(ranks=RING)
def _ring(attempt: Attempt) -> Iterator[str]:
    for rank in range(RING):
        left, right = (rank - 1) % RING, (rank + 1) % RING
        lines, expected = attempt.lines(rank), f"has what rank {left} sent"
        if expected in lines:
            continue
        if any(line.endswith(" -1 sent") for line in lines):
            yield (
                f"Rank {rank} looked into `theirs` before the message was there: wait for the handle of the "
                "`irecv` first."
            )
        if any(line.endswith(f" {right} sent") for line in lines):
            yield f"Rank {rank} has the tensor of rank {right}: the ring turns the other way, to the right."
        yield f"Rank {rank} printed {lines}; expected {expected!r}."
    for rank in range(RING):
        lost = attempt.forgotten(rank)
        if lost:
            yield f"It came out right by luck: nobody waited for {_named(lost[0])} of rank {rank}."


def _named(call: Call) -> str:
    return f"the {call.name} at {call.begun.site.rpartition('/')[2]}"


def _message_lost(run: ScriptRun) -> str:
    """Look for a handle that was let go: the diagnosis of such a hang names the receiver only."""
    if run.failure is None or run.exit_code == STOPPED:
        return ""
    attempt = Attempt(run)
    lost = [call for rank in range(run.nproc) for call in attempt.forgotten(rank) if call.name == "isend"]
    if not lost:
        return ""
    return (
        f"A message was lost: the handle of {_named(lost[0])} was let go before the message had left. Keep "
        "every handle until you have waited for it; for several messages, in a list."
    )


def _nobody_sends(run: ScriptRun) -> str:
    """Look for a ring of receives: which rank's timeout comes first, and so the diagnosis, is chance."""
    if run.failure is None or run.exit_code == STOPPED:
        return ""
    attempt, ranks = Attempt(run), range(run.nproc)
    if any(attempt.calls(rank, "send", "isend") for rank in ranks):
        return ""
    if not all(attempt.calls(rank, "recv") for rank in ranks):
        return ""
    what, check_first = all_in("recv")
    return f"{what} Check first: {check_first}."


FUNCTIONS = {"01.1": _first_touch}
PROGRAMS: Programs = {
    "01.2": first_of(_message_lost, _three_at_once),
    "01.3": first_of(_message_lost, _nobody_sends, _ring),
}
