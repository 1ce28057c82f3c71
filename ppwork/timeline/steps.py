"""Single steps of a chunk's life, from a run's entries: how long each took, and the gap between two steps.

In a gap a thread wakes up, or goes through its loop. Waiting is not part of a gap: each gap begins when the
last thing that the step needs has come. Each rank's clock is used alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK
from ppwork.records.spans import Entry, Span
from ppwork.timeline.chunks import SpansByCall, moments_by_call, spans_by_call

Samples = dict[int, float]
"""Milliseconds by call id."""

STAGE0_STEPS = ("encode", "preflight", "send", "receive", "decode")
LEADER_STEPS = ("receive", "broadcast", "generate", "send_result")


class ChunkSteps:
    """The steps of the chunks of one run.

    Args:
        entries_by_rank: Rank 0's and the leader's entries; others are ignored.
    """

    def __init__(self, entries_by_rank: Mapping[int, Sequence[Entry]]) -> None:
        stage0, leader = entries_by_rank.get(STAGE0_RANK, ()), entries_by_rank.get(LEADER_RANK, ())
        self._stage0 = {name: spans_by_call(stage0, name) for name in STAGE0_STEPS}
        self._leader = {name: spans_by_call(leader, name) for name in LEADER_STEPS}
        self._committed = moments_by_call(stage0, "envelope.send")
        self._returned = moments_by_call(leader, "result.send")
        self._emitted = moments_by_call(stage0, "emit")
        main = [entry for entry in stage0 if entry.lane == "main" and entry.call_id >= 0]
        self._main = sorted(main, key=lambda entry: entry.end_ns)

    def whole_chunks(self) -> list[int]:
        """Return the call ids of the chunks that have all their steps, in order."""
        spans = [set(calls) for calls in (*self._stage0.values(), *self._leader.values())]
        instants = [set(calls) for calls in (self._committed, self._returned, self._emitted)]
        return sorted(set.intersection(*spans, *instants))

    def durations_ms(self, name: str) -> Samples:
        """Return how long a step took; for a transfer, on its sender."""
        spans = self._stage0.get(name) or self._leader.get(name) or {}
        return {call: span.ms for call, span in spans.items()}

    def gaps_ms(self) -> dict[str, Samples]:
        """Return the gap before each step, by its name in ``costs.Gaps``."""
        stage0, leader = self._stage0, self._leader
        _, prepared, sent, taken, decoded = (_ends(stage0[name]) for name in STAGE0_STEPS)
        received, passed_on, computed, answered = (_ends(leader[name]) for name in LEADER_STEPS)
        return {
            "encode": self._after_main("encode"),
            "preflight": self._after_main("preflight"),
            "commit_envelope": _gaps(self._committed, prepared),
            "send": _gaps(_starts(stage0["send"]), self._committed, _later(sent)),
            "broadcast": _gaps(_starts(leader["broadcast"]), received, _later(passed_on)),
            "generate": _gaps(_starts(leader["generate"]), passed_on, _later(self._returned)),
            "commit_result": _gaps(self._returned, computed),
            "send_result": _gaps(_starts(leader["send_result"]), self._returned, _later(answered)),
            "decode": _gaps(_starts(stage0["decode"]), taken),
            "emit": _gaps(self._emitted, decoded),
        }

    def unseen_ms(self) -> Samples:
        """Return, per chunk, the time of its two hops with rank 0 beyond the spans of their senders.

        A send ends when the bytes have left; they reach the receiver and its threads later. Rank 0 sees the
        whole way there and back, and the leader sees how long it had the chunk, each on its own clock; the
        rest is both hops. Only chunks that were alone on their way count: at depth 1, all of them.
        """
        encode, receive = self._stage0["encode"], self._stage0["receive"]
        send, answer, arrived = self._stage0["send"], self._leader["send_result"], self._leader["receive"]
        hops: Samples = {}
        for call in self.whole_chunks():
            before, after = receive.get(call - 1), encode.get(call + 1)
            if before is not None and before.end_ns > encode[call].start_ns:
                continue
            if after is not None and after.start_ns < receive[call].end_ns:
                continue
            there_and_back = receive[call].end_ns - send[call].start_ns
            at_leader = answer[call].start_ns - arrived[call].end_ns
            hops[call] = (there_and_back - at_leader) / 1e6 - send[call].ms - answer[call].ms
        return {call: max(ms, 0.0) for call, ms in hops.items()}

    def _after_main(self, name: str) -> Samples:
        """Return the gaps between a step of rank 0's main thread and the entry before it on that thread."""
        return {
            then.call_id: max(then.start_ns - first.end_ns, 0) / 1e6
            for first, then in pairwise(self._main)
            if isinstance(then, Span) and then.name == name
        }


def _starts(spans: SpansByCall) -> dict[int, int]:
    return {call: span.start_ns for call, span in spans.items()}


def _ends(spans: SpansByCall) -> dict[int, int]:
    return {call: span.end_ns for call, span in spans.items()}


def _later(moments: Mapping[int, int]) -> dict[int, int]:
    """Return each moment under the next call, whose step had to wait for it."""
    return {call + 1: at for call, at in moments.items()}


def _gaps(
    starts: Mapping[int, int], needed: Mapping[int, int], also: Mapping[int, int] | None = None
) -> Samples:
    """Return, per call, the time from the last thing that a step needed to the step's start."""
    also = also or {}
    return {
        call: max(at - max(needed[call], also.get(call, needed[call])), 0) / 1e6
        for call, at in starts.items()
        if call in needed
    }
