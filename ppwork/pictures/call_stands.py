"""Where a rank stood at the end of a program, as its figure says it: in a call, or in code of its own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ppwork.diagnosis.findings import Wait
from ppwork.diagnosis.standing import Standing, stood_in
from ppwork.errors import duration, named_ranks
from ppwork.records.calls import Call, RankCalls
from ppwork.timeline.meetings import Meetings

MISMATCH = "Detected mismatch"
"""Begins torch's word of a call that does not fit, under ``TORCH_DISTRIBUTED_DEBUG=DETAIL``."""


@dataclass(frozen=True)
class Stand:
    """The place of one rank.

    Attributes:
        text: The place in a few words; nothing if the rank came to its end.
        call: Where it stood; ``None``: in no call.
        own: From when until when it was in code of its own, if that is where it was; ``None`` at its end: it
            did not come out of it.
        framed: Whether the call is framed: not if it raised and had not waited.
    """

    text: str = ""
    call: Call | None = None
    own: tuple[int, int | None] | None = None
    framed: bool = False


def stands(
    met: Meetings, end: Standing | None, shown_end_ns: int, aborted: Collection[int] = ()
) -> dict[int, Stand]:
    """Return the place of each rank; nothing is said of a program that came to its end.

    Args:
        met: What met what in the program.
        end: Where its ranks stand.
        shown_end_ns: The last moment that is drawn.
        aborted: Ranks whose process was aborted in a call.
    """
    if end is None:
        return {}
    waits = {wait.rank: wait for wait in end.waits}
    return {
        rank: _stand(met, seen, waits.get(rank), shown_end_ns, rank in aborted)
        for rank, seen in end.ranks.items()
    }


def _stand(met: Meetings, seen: RankCalls, wait: Wait | None, shown_end_ns: int, aborted: bool) -> Stand:
    call = stood_in(seen)
    if wait is None:
        return Stand(call=call, framed=call is not None)
    if call is not None:
        return Stand(_in_call(met, wait, call, aborted), call, framed=_stood_there(wait, call))
    if seen.left is None:
        start, until = _own_code(met.ranks[wait.rank], seen)
        took = f", {duration((until - start) / 1e9)}" if until is not None else ""
        return Stand(f"in code of its own{took}", own=(start, until))
    if seen.left.error:
        return Stand(f"ended with {seen.left.error.partition(':')[0]}")
    return Stand("" if seen.left.at_ns > shown_end_ns else "its program has ended")


def _own_code(of_rank: RankCalls, seen: RankCalls) -> tuple[int, int | None]:
    """Return when a rank left the last call that counts, and when it went on (``None``: never)."""
    start = seen.calls[-1].end_ns if seen.calls else None
    start = seen.head.at_ns if start is None else start
    later = [call.start_ns for call in of_rank.calls[len(seen.calls) :]]
    return start, min(later, default=of_rank.left.at_ns if of_rank.left is not None else None)


def _stood_there(wait: Wait, call: Call) -> bool:
    return MISMATCH not in call.error and bool(wait.waits_for or not call.error)


def _in_call(met: Meetings, wait: Wait, call: Call, aborted: bool) -> str:
    whom = named_ranks(wait.waits_for) if wait.waits_for else ""
    if call.end_ns is None and aborted:
        return f"its process was aborted in this call ({call.line}{_too_long(met, call)})"
    if call.end_ns is None:
        return f"waits for {whom} ({call.line})" if whom else f"stands here ({call.line})"
    if MISMATCH in call.error:
        return f"does not fit the call of {whom} ({call.line})" if whom else f"does not fit ({call.line})"
    took = duration((call.end_ns - call.start_ns) / 1e9)
    return f"waited for {whom} ({call.line}, {took})" if whom else f"raised here ({call.line}, {took})"


def _too_long(met: Meetings, call: Call) -> str:
    """Say that a call was sent more than it took, if it was."""
    both = ((m.sent, m.received) for m in met.messages if m.sent is not None and m.received is not None)
    sizes = ((sent.part.size, got.part.size) for sent, got in both if got.call is call)
    return next((f": {came} bytes came, {room} expected" for came, room in sizes if came > room), "")
