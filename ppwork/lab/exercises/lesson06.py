"""Exercises of the lesson on streams (06): which wait is needed, and which one is made by itself."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

from ppwork.lab.exercises.answers import TriedCall, exercise
from ppwork.lab.exercises.attempts import Attempt, Programs, comes_to_an_end, first_of, program

FRAMES = 3
LATE_NS = 200_000_000
"""A receiver is late if so much lies between a message and its next receive."""

NEVER_SET = (
    "Something waits for an event that nobody sets. For `k = 0`, `{0}[k - 1]` is `{0}[-1]`: in Python the "
    "last event. And `wait()` with parentheses holds the host, which then launches nothing more."
)

# A wait between two operations


@exercise
def _needs_wait() -> Iterator[TriedCall]:
    for streams, buffers, does in product(
        (("compute", "link"), ("link", "link")),
        (("slot 0", "slot 0"), ("slot 0", "slot 1")),
        (("write", "read"), ("read", "write"), ("write", "write"), ("read", "read")),
    ):
        first, second = zip(streams, buffers, does, strict=True)
        right = streams[0] != streams[1] and buffers[0] == buffers[1] and "write" in does
        yield TriedCall(
            f"For {first} and then {second}", (first, second), right, _why_wait(streams, buffers, does)
        )


def _why_wait(streams: tuple[str, str], buffers: tuple[str, str], does: tuple[str, str]) -> str:
    if streams[0] == streams[1]:
        return "One stream runs its operations in order; what could a wait add?"
    if buffers[0] != buffers[1]:
        return "They use different memory: neither can harm the other."
    if "write" not in does:
        return "Both only read: the bytes are the same in either order."
    if does == ("read", "write"):
        return "The second one writes over bytes that the first one may still have to read."
    return "They may run in any order, and at least one of them writes."


# A path of waits

ORDERED = [("receive 1", "broadcast 1"), ("broadcast 1", "take 1"), ("take 1", "receive 3"),
           ("receive 1", "receive 2"), ("receive 2", "receive 3"), ("take 0", "take 1")]  # fmt: skip
"""Of the leader's ring of two slots: waits, and neighbours within a stream."""
ASKED: dict[tuple[str, str], tuple[bool, str]] = {
    ("take 1", "receive 3"): (True, "This edge is in the list."),
    ("broadcast 1", "receive 3"): (
        True,
        "`take 1` waits for the broadcast, and receive 3 waits for `take 1`.",
    ),
    ("receive 1", "receive 3"): (True, "More than one path leads there."),
    ("take 0", "receive 3"): (
        True,
        "`take 0` stands in front of `take 1` in its stream, and receive 3 waits for that.",
    ),
    ("receive 3", "take 1"): (False, "An edge goes one way."),
    ("receive 2", "take 1"): (False, "Both come after `receive 1`, and that does not order the two."),
    ("take 0", "broadcast 1"): (False, "`take 1` waits for both, and neither waits for the other."),
}


@exercise
def _ordered() -> Iterator[TriedCall]:
    for (earlier, later), (right, thought) in ASKED.items():
        text = f"For {earlier!r} and {later!r} in {ORDERED}"
        yield TriedCall(text, (ORDERED, earlier, later), right, thought)


# What an NCCL group waits for

Calls = list[tuple[str, str]]
ONE, SIDE, FILL, SEND = "compute", "side", ("fill", "compute"), "isend"
LAUNCHED: list[tuple[Calls, str]] = [
    ([FILL, (SEND, ONE), ("wait", ONE), FILL], ""),
    (
        [FILL, (SEND, SIDE), ("wait", ONE), FILL],
        "isend waits for the stream that is current when it is called.",
    ),
    (
        [FILL, (SEND, ONE), ("wait", SIDE), FILL],
        "`wait` holds back the stream that is current when it is called; the fill is in another one.",
    ),
    (
        [FILL, (SEND, SIDE), ("wait", SIDE), FILL],
        "Both calls speak of `side`, and both fills are in compute.",
    ),
    ([FILL, (SEND, ONE), FILL], "Without `wait` nothing holds the next fill back."),
    (
        [FILL, (SEND, ONE), FILL, ("wait", ONE)],
        "The next fill was launched before the `wait`: too late for it.",
    ),
]
"""Calls of a host, each with the stream that is current at it; and what to think of."""


@exercise
def _waits() -> Iterator[TriedCall]:
    for calls, hint in LAUNCHED:
        sent = calls[1][1] == ONE
        before_fill = calls[2] == ("wait", ONE)
        yield TriedCall(
            f"For {calls}", (list(calls),), (sent, before_fill), hint or "Here both waits are there."
        )


# The sender: a buffer that is filled again


def _frame(number: int) -> str:
    return str([float(number)] * 4)


def _came(attempt: Attempt, rank: int, word: str) -> list[str]:
    return [line.removeprefix(word).strip() for line in attempt.lines(rank) if line.startswith(word)]


def _stood(attempt: Attempt, rank: int, word: str) -> str:
    """Say whether the host waited before it had launched everything: its line has a number at its end."""
    lines = [line for line in attempt.lines(rank) if line.startswith("all is launched")]
    if not lines:
        return f"Leave the line `all is launched ...` of rank {rank} in: it shows whether the host waited."
    count = lines[0].split()[-1]
    if count != "0":
        return (
            f"{count} of the frames were {word} before the host had launched everything: the host waited. "
            f"Put the wait into a stream's queue with submit, and the host goes on."
        )
    return ""


@program(ranks=2)
def _refill(attempt: Attempt) -> Iterator[str]:
    came = _came(attempt, 1, "arrived")
    if len(came) != FRAMES:
        yield f"Rank 1 printed {len(came)} lines that begin with `arrived`, not {FRAMES}."
    for number, frame in enumerate(came, start=1):
        if frame == _frame(0):
            yield (
                f"Frame {number} left before it was filled. The wait that was there has to stay: link waits "
                "for filled, and compute waits for something else."
            )
        if frame != _frame(number):
            yield (
                f"Frame {number} arrived as {frame}: compute had filled the buffer again before link had "
                "sent it. Which stream has to wait, and for which event? At which place in its queue?"
            )
    if stood := _stood(attempt, 0, "sent"):
        yield stood
    receives = attempt.calls(1, "recv")
    gaps = [after.start_ns - (before.end_ns or 0) for before, after in pairwise(receives)]
    if not gaps or min(gaps) < LATE_NS:
        yield "Leave rank 1 late: with a quick receiver a missing wait does no harm, by luck."


# The receiver: read too early, and overwritten too early


@program(ranks=2)
def _take(attempt: Attempt) -> Iterator[str]:
    took = _came(attempt, 1, "took")
    if len(took) != FRAMES:
        yield f"Rank 1 printed {len(took)} lines that begin with `took`, not {FRAMES}."
    for number, frame in enumerate(took, start=1):
        if frame == _frame(0) and all(other == _frame(0) for other in took):
            yield (
                f"Compute took {frame} for frame {number}: it read the buffer before anything had come. "
                "Compute has to wait for an event of link, before each take."
            )
        if frame == _frame(0):
            yield f"Compute read the buffer for frame {number} before it had come: one wait for each frame."
        if frame != _frame(number):
            yield (
                f"Compute took {frame} for frame {number}: link received the next frame into the buffer "
                "while compute was still copying. Link has to wait, too: from the second receive on, for "
                "the take before it."
            )
    if stood := _stood(attempt, 1, "taken"):
        yield stood


FUNCTIONS = {"06.1": _needs_wait, "06.4": _waits, "06.5": _ordered}
PROGRAMS: Programs = {
    "06.2": first_of(comes_to_an_end(NEVER_SET.format("sent")), _refill),
    "06.3": first_of(comes_to_an_end(NEVER_SET.format("taken")), _take),
}
