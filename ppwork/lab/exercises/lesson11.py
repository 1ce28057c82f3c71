"""Exercises of the lesson on the transport (11)."""

from __future__ import annotations

from collections.abc import Iterator

from ppwork.lab.exercises.answers import TriedCall, exercise, number_case
from ppwork.lab.exercises.attempts import Attempt, Programs, program
from ppwork.records.calls import SEND

COSTS = (
    (1, 4.0, 300.0, 50.0, 2000.0),
    (4, 1000.0, 300.0, 50.0, 2000.0),
    (1, 16e6, 250.0, 60.0, 2500.0),
    (100, 1e6, 400.0, 100.0, 4000.0),
)
"""Messages, bytes of each, latency of the first and of those that follow at once in microseconds, MB/s."""


@exercise
def _cost_us() -> Iterator[TriedCall]:
    for messages, size, rested_us, latency_us, mb_per_s in COSTS:
        bytes_us = size / mb_per_s
        latencies_us = rested_us + (messages - 1) * latency_us
        habits = {
            messages * (rested_us + bytes_us): "Only the first message comes after a rest.",
            messages * (latency_us + bytes_us): "The first message comes after a rest.",
            rested_us + messages * bytes_us: "Each message has a latency of its own.",
            rested_us + messages * (latency_us + bytes_us): "The first message has one latency, not both.",
            latencies_us + bytes_us: "The size is that of each message, not of all of them.",
            latencies_us: "The bytes take time, too.",
            latencies_us + messages * bytes_us / 1e6: "1 MB/s is 1 B for each microsecond.",
            latencies_us + messages * bytes_us * 1e6: "1 MB/s is 1 B for each microsecond.",
        }
        right = latencies_us + messages * bytes_us
        yield number_case((messages, size, rested_us, latency_us, mb_per_s), right, habits)


CHUNKS = 40
OBJECT = "send_object_list"


@program(ranks=2)
def _one_message(attempt: Attempt) -> Iterator[str]:
    sent = attempt.calls(0)
    objects = [number for number, call in enumerate(sent) if "object" in call.name]
    if len(objects) > CHUNKS:
        yield (
            f"Rank 0 calls {sent[objects[-1]].name} in `yours`, too. An object costs two messages and "
            "pickle, even one of a single number: which tensor could carry the number and the layers?"
        )
    if len(objects) < CHUNKS:
        yield f"`as_object` is what yours is compared with: leave its {CHUNKS} calls of {OBJECT} as they are."
    sums = {line.split()[0]: line.partition(" ")[2] for line in attempt.lines(1) if " layers " in line}
    if "yours" not in sums or sums["yours"] != sums.get("as_object"):
        yield f"`yours` gives {sums.get('yours')}, and `as_object` gives {sums.get('as_object')}."
    messages = [
        call
        for call in sent[objects[-1] + 1 :]
        if call.name == "broadcast" or any(part.kind == SEND for part in call.begun.parts)
    ]
    if len(messages) > CHUNKS:
        yield (
            f"{len(messages)} messages for {CHUNKS} chunks, and each of them has its latency. Both ranks "
            "know the shapes: can all of a chunk ride in one tensor?"
        )
    if len(messages) < CHUNKS:
        yield f"{len(messages)} messages for {CHUNKS} chunks: each chunk has to go over when its turn comes."
    if calls := attempt.forgotten(0) + attempt.forgotten(1):
        yield f"Nobody waits for the handle of {calls[0].name} ({calls[0].line})."


PRINTED = [f"chunk {k} has {k}" for k in range(4)]


@program(ranks=3)
def _no_barrier(attempt: Attempt) -> Iterator[str]:
    met = [meeting for meeting in attempt.met.meetings if not meeting.is_start]
    if len(met) > 1:
        yield (
            f"All ranks meet {len(met)} times ({met[0].name}), so ranks 0 and 1 wait for the previews of "
            "rank 2. What does rank 0 have to know before it fills its buffer again?"
        )
    if attempt.lines(1) != PRINTED:
        yield (
            f"Rank 1 printed {attempt.lines(1)}. torch reads the buffer of an isend until its handle has "
            "been waited for: when may rank 0 fill it again?"
        )
    if calls := attempt.forgotten(0):
        yield f"Rank 0 never waits for the handle of {calls[0].name} ({calls[0].line})."
    if attempt.calls(2, "send", "isend", "recv", "irecv"):
        yield "Rank 2 has nothing to do with the chunks: no message should go to it or come from it."


FUNCTIONS = {"11.1": _cost_us}
PROGRAMS: Programs = {"11.2": _one_message, "11.3": _no_barrier}
