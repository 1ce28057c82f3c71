"""Exercises of the lesson on testing a sentence (15): two judges, and a program that can refute."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ppwork.lab.exercises.answers import TriedCall, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, program
from ppwork.records.calls import SEND, Call

Notes = dict[str, float]
HOLDS, NOT_HERE, NOTHING, ERROR = "holds", "does not hold here", "shows nothing", "error"
OBSERVATIONS: dict[str, tuple[Notes, Notes, str]] = {
    "The send was called before its receiver came and returned after it: it may have waited for it.": (
        {"called": 10.0, "returned": 10.41},
        {"came": 10.4},
        NOT_HERE,
    ),
    "The send was back before there was a receiver.": (
        {"called": 10.0, "returned": 10.001},
        {"came": 10.4},
        HOLDS,
    ),
    "It took long on a slow machine, but it was back before there was a receiver: compare moments, not "
    "durations.": ({"called": 10.0, "returned": 10.35}, {"came": 10.4}, HOLDS),
    "There is no `returned` in these notes: the program did not get that far, and nothing was shown. "
    "Neither verdict may come of it.": ({"called": 10.0}, {"came": 10.4}, ERROR),
    "The receiver has noted nothing: there is no moment to compare with.": (
        {"called": 10.0, "returned": 10.41},
        {},
        ERROR,
    ),
    "The receiver was there before the send was called: there was nothing to wait for, and the run shows "
    "nothing.": ({"called": 10.5, "returned": 10.51}, {"came": 10.4}, NOTHING),
    "There is no `called` in these notes: was the receiver there before the call? Nobody can say.": (
        {"returned": 10.41},
        {"came": 10.4},
        ERROR,
    ),
}
"""Notes of sender and receiver, and the verdict on "`send` does not wait for its receiver", by the reason."""


@exercise
def _judge() -> Iterator[TriedCall]:
    for thought, (sender, receiver, right) in OBSERVATIONS.items():
        text = f"For the sender's {sender} and the receiver's {receiver}"
        yield TriedCall(text, (sender, receiver), right, thought)


ENDS: dict[str, tuple[Notes, int | None, tuple[str, str]]] = {
    "It raised, and the process went on: one sentence holds, the other does not.": (
        {"called": 10.0, "raised": 11.02, "went_on": 11.5},
        0,
        (HOLDS, NOT_HERE),
    ),
    "It raised, and the process ended at once.": ({"called": 10.0, "raised": 11.02}, -6, (HOLDS, HOLDS)),
    "The process was ended by a signal, and nothing was raised in it.": (
        {"called": 10.0},
        -6,
        (NOT_HERE, HOLDS),
    ),
    "It was still in its `recv` when it was stopped: it neither raised nor ended.": (
        {"called": 10.0},
        None,
        (NOT_HERE, NOT_HERE),
    ),
    "It never came to its `recv`: nothing was shown of either sentence.": ({}, 1, (ERROR, ERROR)),
}
"""Notes and exit code of a rank, and the verdicts on "it raises" and on "the process ends", by the reason."""


@exercise
def _two_verdicts() -> Iterator[TriedCall]:
    for thought, (notes, exit_code, right) in ENDS.items():
        yield TriedCall(
            f"For the notes {notes} and the exit code {exit_code}", (notes, exit_code), right, thought
        )


TOLD = re.compile(r"(one tag|two tags): got ([\d.]+), (.+)")


@program(ranks=2)
def _own_claim(attempt: Attempt) -> Iterator[str]:
    told = [found for line in attempt.lines(1) if (found := TOLD.fullmatch(line))]
    if [found[1] for found in told] != ["one tag", "two tags"]:
        yield (
            f"Rank 1 printed {attempt.lines(1)}; expected a line 'one tag: got ..., ...' and then a line "
            "'two tags: got ..., ...'."
        )
    sent = [part.tag for call in attempt.calls(0) for part in call.begun.parts if part.kind == SEND]
    received = [_tag(call) for call in attempt.calls(1, "recv", "irecv")]
    if len(sent) != 4 or sent[0] != sent[1] or sent[2] == sent[3]:
        yield f"Rank 0 sent with the tags {sent}; expected one tag for two messages, then two tags."
    if received[2:3] != sent[3:]:
        yield (
            "With two tags, rank 1 asks for the message that was sent first, and gets it: no run can refute "
            "the sentence in that way. Which message does it have to ask for first?"
        )
    numbers = [float(found[2]) for found in told]
    if numbers == [1.0, 1.0]:
        yield "Whichever message came, rank 1 would print this: give the two messages different numbers."
    verdicts = [found[3] for found in told]
    if numbers != [1.0, 2.0]:
        yield f"Rank 1 got {numbers}; the first message of a pair is to hold 1, the second 2."
    if verdicts[:1] != verdicts[1:] and verdicts != [HOLDS, NOT_HERE]:
        yield f"The verdicts are {verdicts}. Got 1 means that the message sent first came first: it holds."
    if verdicts != [HOLDS, NOT_HERE]:
        yield (
            f"The verdict is {verdicts[0]!r} twice, though rank 1 got {numbers[0]:g} and {numbers[1]:g}: "
            "make it of what was got."
        )


def _tag(call: Call) -> int:
    return call.begun.parts[0].tag


FUNCTIONS = {"15.1": _judge, "15.2": _two_verdicts}
PROGRAMS: Programs = {"15.3": _own_claim}
