"""Exercises of the lesson on overlap (05)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ppwork.lab.exercises.answers import TriedCall, exercise, number_case
from ppwork.lab.exercises.attempts import Attempt, Programs, lent_twice, program
from ppwork.timeline.chunks import common_ns

CHUNKS, DEPTH = 12, 2
"""Of the program whose envelopes leave late."""
CARRIED, LINK = 6, 2
"""Of the program that posts late: its chunks, each in two halves, and the rank that carries them."""
AHEAD_MS = 15.0
"""Part of the 20 ms of generating for which a receive has been posted: a sleep is never shorter."""
IN_TURNS_MS, LATE_MS = 30, 35
"""Periods of generating and the link one after the other, and of generating and the decode; sleeps again, so
they are sharp lower limits."""


def _done_right(attempt: Attempt, chunks: int) -> Iterator[str]:
    """Yield hints on what overlap must not change: whose a buffer is, results, every handle waited for."""
    for rank in (0, 1):
        yield from lent_twice(attempt, rank)
    results = f"came back: {[k + 100 for k in range(chunks)]}"
    if results not in attempt.lines(0):
        yield (
            f"Rank 0 did not print {results!r}. Was a buffer written to while torch still had it? Two "
            "messages under way need two buffers."
        )
    for rank in (0, 1):
        if calls := attempt.forgotten(rank):
            yield (
                f"Rank {rank} never waits for the handle of {calls[0].name} ({calls[0].line}). Keep it, with "
                "its buffer, and wait for it before the buffer is used again."
            )
    for rank, what in ((0, "envelopes"), (1, "results")):
        if (sent := len(attempt.messages(rank))) != chunks:
            yield f"{sent} {what} went over; it should be {chunks}."


@program(2)
def _overlaps(attempt: Attempt) -> Iterator[str]:
    yield from _done_right(attempt, CHUNKS)
    envelopes, results = attempt.messages(0), attempt.messages(1)
    for k in range(CHUNKS - 1):
        if envelopes[k + 1].left_ns >= results[k].back_ns:
            yield (
                f"Envelope {k + 1} left only after result {k} was back: rank 1 had nothing to do until then. "
                f"What is ready on rank 0 while rank 1 generates chunk {k}, and which calls would send it, "
                "right after its encode and before the two waits?"
            )
            return
    for k in range(CHUNKS - DEPTH):
        if envelopes[k + DEPTH].left_ns < results[k].back_ns:
            yield (
                f"Envelope {k + DEPTH} left before result {k} was back: more than {DEPTH} chunks are "
                "unfinished, and without a bound the memory grows with the stream."
            )
            return
    yield from _period_below(attempt, LATE_MS, "The envelopes leave in time", "generating and the decode")


@program(3)
def _posts_ahead(attempt: Attempt) -> Iterator[str]:
    yield from _done_right(attempt, CARRIED)
    halves, results = attempt.messages(LINK), attempt.messages(1)
    if len(halves) != 2 * CARRIED:
        yield f"{len(halves)} halves came to rank 1; the link sends {2 * CARRIED}. Leave rank 2 as it is."
        return
    for number, half in enumerate(halves[2:], start=2):
        k, posted, answered_ns = number // 2, half.received, results[number // 2 - 1].left_ns
        if answered_ns - posted.call.start_ns < AHEAD_MS * 1e6:
            which = "both halves" if number % 2 == 0 else "the second half"
            yield (
                f"Rank 1 posts the receive for {which} of chunk {k} after it has generated chunk {k - 1}, so "
                "the link cannot carry it meanwhile. Which calls must come before generate?"
            )
            return
        if posted.done_ns is not None and posted.done_ns < answered_ns - AHEAD_MS * 1e6:
            yield (
                f"Rank 1 waits for chunk {k} before it generates chunk {k - 1}: post the receive early, and "
                "wait for it late."
            )
            return
    yield from _period_below(
        attempt, IN_TURNS_MS, "The receives are posted in time", "generating and the link"
    )


def _period_below(attempt: Attempt, limit_ms: int, done: str, in_turns: str) -> Iterator[str]:
    """Yield a hint where the calls are right and the period that rank 0 prints shows nothing of it."""
    words = " ".join(line for line in attempt.lines(0) if line.startswith("period")).split()
    if len(words) < 2 or not words[1].isdigit():
        yield "Rank 0 must still print its period, such as: period 20 ms."
    elif int(words[1]) >= limit_ms:
        yield (
            f"{done}, and the period is {words[1]} ms all the same: {in_turns} in turns take {limit_ms}. "
            "If the machine is busy with something else, run it again."
        )


CASES_MS = ((20.0, 30.0, 2.0), (30.0, 30.0, 6.0), (60.0, 20.0, 1.0), (10.0, 10.0, 40.0), (5.0, 60.0, 0.0))
"""Stage 0, stage 1 and transport."""


@exercise
def _smallest_depth() -> Iterator[TriedCall]:
    for stage0, stage1, transport in CASES_MS:
        right = math.ceil((stage0 + stage1 + transport) / max(stage0, stage1))
        habits = {
            right - 1.0: "One less than needed: with that the law's third term is still the largest.",
            right + 1.0: "One more than needed: deeper only adds delay and stale work.",
        }
        yield number_case((stage0, stage1, transport), right, habits)


LOGGED_MS = {
    "Encode and decode of stage 0 have no numbers in common with the mesh: compare each entry with all.": (
        [(0, 15), (15, 30), (30, 45)], [(15, 45)],
    ),
    "They never worked at once: what does not meet counts as 0, and not as less.": (
        [(0, 10), (40, 50)], [(10, 40), (50, 80)],
    ),
    "An encode of the next chunk falls into this chunk's generate, which another entry has begun in, too.": (
        [(0, 10), (20, 30), (30, 50), (70, 80)], [(12, 42), (45, 75)],
    ),
    "One works all the time, the other in it.": ([(0, 100)], [(10, 20), (30, 60)]),
}  # fmt: skip
"""What two ranks logged, by the thought that it needs."""


@exercise
def _in_common() -> Iterator[TriedCall]:
    for thought, (stage0, mesh) in LOGGED_MS.items():
        right = common_ns(stage0, mesh)
        yield TriedCall(f"For stage0 {stage0} and mesh {mesh}", (stage0, mesh), right, thought)


FUNCTIONS = {"05.2": _smallest_depth, "05.3": _in_common}
PROGRAMS: Programs = {"05.1": _posts_ahead, "05.4": _overlaps}
