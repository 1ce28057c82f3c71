"""Single steps of a chunk's life, read from what a run left: how long each took, and what lay between two.

Between two steps lies a handover: a thread wakes, or goes through its loop. Waiting is none: each gap begins
when the last of all that the step needs was there. Each rank's clock is used alone.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from ppwork.timeline import Entry, Instant, Span
from ppwork.topology import LEADER_RANK, STAGE0_RANK

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

SpansByCall = dict[int, Span]
Samples = dict[int, float]
"""Milliseconds by call id."""

STAGE0_STEPS = ("encode", "preflight", "send", "receive", "decode")
LEADER_STEPS = ("receive", "broadcast", "generate", "send_result")


class ObservedSteps:
    """The steps of the chunks of one run.

    Args:
        entries_by_rank: Rank 0's and the leader's; others are not looked at.
    """

    def __init__(self, entries_by_rank: Mapping[int, Sequence[Entry]]) -> None:
        stage0, leader = entries_by_rank.get(STAGE0_RANK, ()), entries_by_rank.get(LEADER_RANK, ())
        self._stage0 = {name: spans_of(stage0, name) for name in STAGE0_STEPS}
        self._leader = {name: spans_of(leader, name) for name in LEADER_STEPS}
        self._committed = instants_of(stage0, "envelope.send")
        self._returned = instants_of(leader, "result.send")
        self._emitted = instants_of(stage0, "emit")
        self._main = sorted((e for e in stage0 if e.lane == "main" and e.call_id >= 0), key=end_ns)

    def whole_chunks(self) -> list[int]:
        """Return the call ids of the chunks that have all their steps, in order."""
        spans = [set(found) for found in (*self._stage0.values(), *self._leader.values())]
        instants = [set(found) for found in (self._committed, self._returned, self._emitted)]
        return sorted(set.intersection(*spans, *instants))

    def durations_ms(self, name: str) -> Samples:
        """Return how long a step took; of the two ends of a transfer, its sender's."""
        spans = self._stage0.get(name) or self._leader.get(name) or {}
        return {call: span.ms for call, span in spans.items()}

    def handovers_ms(self) -> dict[str, Samples]:
        """Return the gap before each step, under the names of ``costs.Handovers``."""
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
        """Return what each chunk's two hops with rank 0 took beyond the spans of their senders.

        A send ends when the bytes have left; to the receiver, its threads included, they come later. Rank 0
        sees the whole way there and back, the leader how long it had the chunk, each on its own clock; what
        is left is both hops. Only chunks that were alone on their way count: all of them at depth 1.
        """
        encode, receive = self._stage0["encode"], self._stage0["receive"]
        send, answer, arrived = self._stage0["send"], self._leader["send_result"], self._leader["receive"]
        found: Samples = {}
        for call in self.whole_chunks():
            before, after = receive.get(call - 1), encode.get(call + 1)
            if before is not None and before.end_ns > encode[call].start_ns:
                continue
            if after is not None and after.start_ns < receive[call].end_ns:
                continue
            there_and_back = receive[call].end_ns - send[call].start_ns
            at_leader = answer[call].start_ns - arrived[call].end_ns
            found[call] = (there_and_back - at_leader) / 1e6 - send[call].ms - answer[call].ms
        return {call: max(ms, 0.0) for call, ms in found.items()}

    def _after_main(self, name: str) -> Samples:
        """Return the gaps between a step of rank 0's main thread and whatever that thread did before it."""
        return {
            then.call_id: max(then.start_ns - end_ns(first), 0) / 1e6
            for first, then in pairwise(self._main)
            if isinstance(then, Span) and then.name == name
        }


def spans_of(entries: Iterable[Entry], name: str) -> SpansByCall:
    """Return the spans of one name by call id."""
    return {e.call_id: e for e in entries if isinstance(e, Span) and e.name == name and e.call_id >= 0}


def instants_of(entries: Iterable[Entry], name: str) -> dict[int, int]:
    """Return the moments of one name by call id."""
    return {e.call_id: e.at_ns for e in entries if isinstance(e, Instant) and e.name == name}


def end_ns(entry: Entry) -> int:
    """Return when an entry was written: the end of a span, the moment of an instant."""
    return entry.end_ns if isinstance(entry, Span) else entry.at_ns


def _starts(spans: SpansByCall) -> dict[int, int]:
    return {call: span.start_ns for call, span in spans.items()}


def _ends(spans: SpansByCall) -> dict[int, int]:
    return {call: span.end_ns for call, span in spans.items()}


def _later(moments: Mapping[int, int]) -> dict[int, int]:
    """Return each moment under the next call: what the step of that call had to wait for."""
    return {call + 1: at for call, at in moments.items()}


def _gaps(
    starts: Mapping[int, int], needed: Mapping[int, int], also: Mapping[int, int] | None = None
) -> Samples:
    """Return, per call, the time from the last of what a step needed to its start."""
    also = also or {}
    return {
        call: max(at - max(needed[call], also.get(call, needed[call])), 0) / 1e6
        for call, at in starts.items()
        if call in needed
    }
