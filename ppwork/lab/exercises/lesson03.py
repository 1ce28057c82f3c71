"""Exercises of the lesson on messages that say what they are (03)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ppwork.lab.exercises.answers import Answer
from ppwork.lab.exercises.attempts import Attempt, Programs, first_of, program
from ppwork.launcher.script import ScriptRun

SENDS = (
    [
        ("serialise metadata", "check"),
        ("send header", "send"),
        ("check dtypes", "check"),
        ("send tensors", "send"),
    ],
    [
        ("header leaves", "send"),
        ("sender's turn", "check"),
        ("body leaves", "send"),
        ("tensors leave", "send"),
    ],
)
"""Somebody's send, step by step: what may raise, and what leaves."""


def _order(answer: Answer) -> str:
    for steps in SENDS:
        given = answer([list(step) for step in steps])
        kinds = dict(steps)
        if not isinstance(given, list) or sorted(map(str, given)) != sorted(kinds):
            return f"You gave {given!r}; return the names of all steps, each once: {', '.join(kinds)}."
        gone = ""
        for name in given:
            if gone and kinds[name] == "check":
                return f"In {given} {name!r} may raise when {gone!r} has left: the peer waits for the rest."
            gone = gone or (name if kinds[name] == "send" else "")
        parts = [name for name in given if kinds[name] == "send"]
        if parts != [name for name in kinds if kinds[name] == "send"]:
            return (
                f"In {given} the parts leave as {parts}; the receiver reads them as they stood, header first."
            )
    return ""


FUNCTIONS = {"03.2": _order}

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
            f"{HOLE} stranded rank 1: its header left, and the next message of rank 0 was another header. "
            "Make the pixels before the header leaves."
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
    "03.3": first_of(_header_left, _too_long, _reordered),
}
