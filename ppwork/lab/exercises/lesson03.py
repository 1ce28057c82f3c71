"""Exercises of the lesson on messages that say what they are (03)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

from ppwork.lab.exercises.answers import TriedCall, exercise
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
def _left_waiting() -> Iterator[TriedCall]:
    for thought, (steps, waiting) in WAITING.items():
        yield TriedCall(f"For {steps}", (steps,), sorted(waiting), thought)


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
            "Rank 1 took the count, one header and one tensor, and stopped. Rank 0 stood in its next send "
            "until rank 1 had left. The count says how many tensors there are."
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


SENT = ("0 [[1.0, 2.0], [3.0, 4.0]]", "2 [[1.0, 3.0], [2.0, 4.0]]", "3 [[9.0, 0.0], [1.0, 2.0]]")
"""Chunks that can be sent: all but the one with the hole."""
SENDS_OF_CHUNKS = 2 * len(SENT) + 1
"""Header and pixels of each, and the end."""
HOLE, TURNED = "The chunk with the hole", "Chunk 2, the transpose,"


def _header_left(run: ScriptRun) -> str:
    """Look for a header that no pixels follow, also in a program that did not end."""
    for header, then in pairwise(Attempt(run).calls(0, "send")):
        if header.error or header.begun.parts[0].dtype != "int64":
            continue
        if "contiguous" in then.error:
            return (
                f"{TURNED} stranded rank 1: its header left, and `dist.send` refused its pixels, whose "
                "numbers do not lie in one row. What can `send_chunk` do about that before the header leaves?"
            )
        if then.begun.parts[0].dtype == "int64":
            return (
                f"{HOLE} stranded rank 1: a header of 24 bytes came where it expected 16 bytes of pixels, "
                "and gloo aborted it. What in `send_chunk` can raise, and what has left by then?"
            )
    return ""


@program(2)
def _reordered(attempt: Attempt) -> Iterator[str]:
    wanted = [f"received chunk {chunk}" for chunk in SENT]
    lines = attempt.lines(1)
    if any(line.startswith("received chunk 1") for line in lines):
        yield f"{HOLE} was sent all the same. Leave it out: rank 0 says so, and goes on with the next one."
    if lines and not any(line.startswith("received chunk 2") for line in lines):
        yield (
            f"{TURNED} was left out, and nothing of it is missing: send a copy whose numbers lie in one row."
        )
    if lines != wanted:
        yield f"Rank 1 printed {lines} in place of {wanted}."
    if len(attempt.calls(0, "send")) != SENDS_OF_CHUNKS:
        made = len(attempt.calls(0, "send"))
        yield f"Rank 0 made {made} sends; three chunks and the end take {SENDS_OF_CHUNKS}."


PROGRAMS: Programs = {
    "03.1": first_of(_too_long, _one_of_two, _received),
    "03.2": first_of(_header_left, _too_long, _reordered),
}
