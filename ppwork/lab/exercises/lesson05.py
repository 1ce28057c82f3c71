"""Exercises of the lesson on overlap (05)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ppwork.lab.exercises.answers import Case, exercise, number_case
from ppwork.lab.exercises.attempts import Attempt, Programs, program
from ppwork.timeline.meetings import Message

CHUNKS, DEPTH = 4, 2
AHEAD_MS = 15.0
"""Part of the 20 ms of generating for which a receive has been posted: a sleep is never shorter."""
RESULTS = [f"chunk {k} came back as {k + 100}" for k in range(CHUNKS)]


def _messages(attempt: Attempt) -> tuple[list[Message], list[Message]]:
    """Return envelopes and results, in their order."""
    whole = [m for m in attempt.met.messages if m.sent is not None and m.received is not None]
    return [m for m in whole if m.sender == 0], [m for m in whole if m.sender == 1]


def _done_right(attempt: Attempt) -> Iterator[str]:
    """Yield hints on what overlap must not change: whose a buffer is, results, every handle waited for."""
    for rank in (0, 1):
        if pairs := attempt.shared(rank):
            (first, second), *_ = pairs
            yield (
                f"Rank {rank} gives {second.name} ({second.line}) the buffer that torch still has from "
                f"{first.name} ({first.line}): two messages under way need two buffers."
            )
    if lost := [line for line in RESULTS if line not in attempt.lines(0)]:
        yield (
            f"Rank 0 did not print {lost[0]!r}. Was a buffer written to while torch still had it? Two "
            "messages under way need two buffers."
        )
    for rank in (0, 1):
        if calls := attempt.forgotten(rank):
            yield (
                f"Rank {rank} never waits for the handle of {calls[0].name} ({calls[0].line}). Keep it, with "
                "its buffer, and wait for it before the buffer is used again."
            )
    envelopes, results = _messages(attempt)
    if len(envelopes) != CHUNKS or len(results) != CHUNKS:
        yield f"{len(envelopes)} envelopes and {len(results)} results went over; it should be {CHUNKS} each."


@program(2)
def _overlaps(attempt: Attempt) -> Iterator[str]:
    yield from _done_right(attempt)
    envelopes, results = _messages(attempt)
    for k in range(CHUNKS - 1):
        back_ns = _back_ns(results[k])
        if envelopes[k + 1].sent.call.start_ns >= back_ns:  # type: ignore[union-attr]
            yield (
                f"Envelope {k + 1} left only after result {k} was back: rank 1 had nothing to do until then. "
                f"What is ready on rank 0 while rank 1 generates chunk {k}, and which calls would start it, "
                "right behind its encode and in front of the two waits?"
            )
            return
    for k in range(CHUNKS - DEPTH):
        if envelopes[k + DEPTH].sent.call.start_ns < _back_ns(results[k]):  # type: ignore[union-attr]
            yield (
                f"Envelope {k + DEPTH} left before result {k} was back: more than {DEPTH} chunks are "
                "unfinished, and without a bound the memory grows with the stream."
            )
            return


@program(2)
def _posts_ahead(attempt: Attempt) -> Iterator[str]:
    yield from _done_right(attempt)
    envelopes, results = _messages(attempt)
    for k in range(CHUNKS - 1):
        posted, answers = envelopes[k + 1].received, results[k].sent
        assert posted is not None  # noqa: S101  whole messages only
        assert answers is not None  # noqa: S101
        if answers.call.start_ns - posted.call.start_ns < AHEAD_MS * 1e6:
            yield (
                f"Rank 1 posts the receive for chunk {k + 1} after it has generated chunk {k}, so the bytes "
                "cannot move meanwhile. Which call must stand in front of generate?"
            )
            return
        if posted.done_ns is not None and posted.done_ns < answers.call.start_ns - AHEAD_MS * 1e6:
            yield (
                f"Rank 1 waits for chunk {k + 1} before it generates chunk {k}: post the receive early, and "
                "wait for it late."
            )
            return


def _back_ns(result: Message) -> int:
    """Return when rank 0 knew that a result was there; a handle that nobody waited for has had its hint."""
    return (result.received.done_ns if result.received is not None else None) or 0


CASES_MS = ((20.0, 30.0, 2.0), (30.0, 30.0, 6.0), (60.0, 20.0, 1.0), (10.0, 10.0, 40.0), (5.0, 60.0, 0.0))
"""Stage 0, stage 1 and transport."""


@exercise
def _smallest_depth() -> Iterator[Case]:
    for stage0, stage1, transport in CASES_MS:
        right = math.ceil((stage0 + stage1 + transport) / max(stage0, stage1))
        habits = {
            right - 1.0: "One less than needed: with that the law's third term is still the largest.",
            right + 1.0: "One more than needed: deeper only adds delay and stale work.",
        }
        yield number_case((stage0, stage1, transport), right, habits)


FUNCTIONS = {"05.2": _smallest_depth}
PROGRAMS: Programs = {"05.1": _posts_ahead, "05.3": _overlaps}
