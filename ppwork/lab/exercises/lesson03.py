"""Exercises of the lesson on messages that say what they are (03)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ppwork.lab.exercises.answers import Case, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, first_of, program
from ppwork.launcher.script import ScriptRun

WAITING = {
    "Before the first send any header will do; after the last one nothing of this message is missing.": (
        ["convert", "send header", "log", "send payload", "log again"],
        ["log", "send payload"],
    ),
    "All that can raise comes before the only send: nobody is ever left waiting.": (
        ["convert", "check layout", "send all"],
        [],
    ),
    "If a send raises, nothing of it has left: the first one strands nobody, and the second one does.": (
        ["send header", "send payload"],
        ["send payload"],
    ),
    "From the first send to the last the receiver waits for the rest, whatever stands between.": (
        ["preflight", "send header", "convert", "send specs", "check layout", "send tensors", "emit"],
        ["convert", "send specs", "check layout", "send tensors"],
    ),
    "Nothing is sent, so nobody waits for a rest.": (["convert", "log"], []),
}
"""Steps of somebody's send, and those that leave the receiver waiting if they raise, by what to think of."""


@exercise
def _left_waiting() -> Iterator[Case]:
    for thought, (steps, waiting) in WAITING.items():
        yield Case(f"For {steps}", (steps,), sorted(waiting), thought)


FUNCTIONS = {"03.3": _left_waiting}

LIST = ("torch.int32 [2, 3] 6", "torch.float32 [5] 5")
"""What rank 1 prints of the list that it receives."""


def _too_long(run: ScriptRun) -> str:
    """Look for a message that was longer than its buffer: the receiver is gone, its calls are not."""
    attempt = Attempt(run)
    met = zip(attempt.calls(0, "send"), attempt.calls(1, "recv"), strict=False)
    for number, (send, recv) in enumerate(met, start=1):
        sent, room = send.begun.parts[0], recv.begun.parts[0]
        if sent.size > room.size:
            return (
                f"Message {number} has {sent.size} bytes ({sent.text}), and rank 1 received it into "
                f"{room.size} ({room.text}) at {recv.line}. gloo ends the receiver then."
            )
    return ""


def _one_of_two(run: ScriptRun) -> str:
    """A receiver that stops early leaves the sender in its next send; the diagnosis says only that."""
    if run.failure is None:
        return ""
    received = len(Attempt(run).calls(1, "recv"))
    if received == 3:
        return (
            "Rank 1 took the count, one header and one tensor, and stopped. Rank 0 still sends; the count "
            "says how many tensors there are."
        )
    return ""


@program(2)
def _received(attempt: Attempt) -> Iterator[str]:
    lines = attempt.lines(1)
    if len(lines) < len(LIST):
        yield f"Rank 0 sends 2 tensors, and rank 1 printed {len(lines)}. The count says how many there are."
    for line, wanted in zip(lines, LIST, strict=False):
        if line.split()[:1] != wanted.split()[:1]:
            yield (
                f"Rank 1 printed `{line}`; that tensor was sent as {wanted.split()[0]}. The first number of "
                "the header is the place of the dtype in DTYPES."
            )
        if line != wanted:
            yield f"Rank 1 printed `{line}` in place of `{wanted}`."


SENDS_OF_CHUNKS = 5
"""Header and pixels of two chunks, and the end."""
HOLE = "The chunk with the hole"


def _header_left(run: ScriptRun) -> str:
    """Look for a header that no pixels follow, also in a program that did not end."""
    kinds = [call.begun.parts[0].dtype for call in Attempt(run).calls(0, "send")]
    if any(pair == ("int64", "int64") for pair in pairwise(kinds)):
        return (
            f"{HOLE} stranded rank 1: a header of 16 bytes came where it expected 8 bytes of pixels, and "
            "gloo aborted it. Which of the three lines of `send_chunk` can raise, and what has left by then?"
        )
    return ""


@program(2)
def _reordered(attempt: Attempt) -> Iterator[str]:
    wanted = ["received chunk 0 [0.25, 0.5]", "received chunk 2 [0.5, 0.75]"]
    if any(line.startswith("received chunk 1") for line in attempt.lines(1)):
        yield f"{HOLE} was sent all the same. Leave it out: rank 0 says so, and goes on with the next one."
    if attempt.lines(1) != wanted:
        yield f"Rank 1 printed {attempt.lines(1)} in place of {wanted}."
    if len(attempt.calls(0, "send")) != SENDS_OF_CHUNKS:
        yield f"Rank 0 made {len(attempt.calls(0, 'send'))} sends; two chunks and the end take 5."


PROGRAMS: Programs = {
    "03.1": first_of(_too_long, _one_of_two, _received),
    "03.2": first_of(_header_left, _too_long, _reordered),
}
