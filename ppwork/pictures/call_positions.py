"""Where a rank stood at the end of a program, as its figure says it: in a call, or in code of its own."""

from __future__ import annotations

import re
import signal
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from ppwork.diagnosis.causes import closings
from ppwork.diagnosis.findings import Wait
from ppwork.diagnosis.program_waits import OWN_CODE, ProgramWaits, stood_in
from ppwork.errors import duration, named_ranks
from ppwork.protocol.backend_errors import LOST_TEXTS
from ppwork.records.calls import Call, RankCalls
from ppwork.timeline.meetings import MAKES_GROUPS, Meetings

STOOD_NS = 100_000_000
"""From which length on a call that raised, and that its program caught, is a place where a rank stood."""
CLOSES = "closes its connections here"
MISMATCH = "Detected mismatch"
"""Begins torch's word of a call that does not fit, under ``TORCH_DISTRIBUTED_DEBUG=DETAIL``."""


@dataclass(frozen=True)
class CallPosition:
    """The place of one rank.

    Attributes:
        text: The place in a few words; nothing if the rank came to its end.
        call: Where it stood; ``None``: in no call.
        own: From when until when it was in code of its own, if that is where it was; ``None`` at its end: it
            did not come out of it.
        framed: Whether the place is framed as one where a rank stood: not a call that raised and had not
            waited, and not code of its own, unless the rank was lost there.
    """

    text: str = ""
    call: Call | None = None
    own: tuple[int, int | None] | None = None
    framed: bool = False


def struck_by(number: int) -> str:
    """Say which signal ended a rank, or that it was stopped."""
    if number == signal.SIGSTOP:
        return "stopped"
    return f"ended by {signal.Signals(number).name if number in {*signal.Signals} else f'signal {number}'}"


def died_ns(met: Meetings, rank: int) -> int | None:
    """Return when a rank that was killed was gone: when a call of another one failed behind its last moment.

    A call that lost its connection says so; one that was refused on its own rank says nothing of the other,
    and counts only where none lost its connection. ``None``: nobody noticed.
    """
    calls = met.ranks[rank].calls
    own = [at_ns for call in calls for at_ns in (call.start_ns, call.end_ns) if at_ns is not None]
    last_ns = max(own, default=met.ranks[rank].head.at_ns)
    others = [call for other, of_rank in met.ranks.items() if other != rank for call in of_rank.calls]
    failed = [
        (call.end_ns, _is_lost(call))
        for call in others
        if call.error and call.end_ns is not None and call.end_ns > last_ns
    ]
    noticed = [at_ns for at_ns, is_lost in failed if is_lost]
    return min(noticed or (at_ns for at_ns, _ in failed), default=None)


def positions(
    met: Meetings, end: ProgramWaits | None, shown_end_ns: int, killed: Mapping[int, int]
) -> dict[int, CallPosition]:
    """Return the place of each rank; nothing is said of a program that came to its end.

    Args:
        met: What met what in the program.
        end: Where its ranks stand.
        shown_end_ns: The last moment that is drawn.
        killed: Signals that ended ranks.
    """
    if end is None:
        return {}
    waits = {wait.rank: wait for wait in end.waits}
    places = {
        rank: _stand(met, seen, waits.get(rank), shown_end_ns, killed.get(rank, 0))
        for rank, seen in end.ranks.items()
    }
    # That its program has ended comes after what it did to others, and is no cause of it.
    return places | {closes.rank: CallPosition(CLOSES, closes) for _, closes in closed(met, end)}


def closed(met: Meetings, end: ProgramWaits | None) -> list[tuple[Call, Call]]:
    """Return each call that lost its connection, and the call of a peer that closed it."""
    if end is None or end.mismatches:
        return []
    pairs = closings(met, {rank: stood_in(seen) for rank, seen in end.ranks.items()})
    return [(call, closes) for call, closes in pairs if stood_in(end.ranks[closes.rank]) is not call]


def _stand(met: Meetings, seen: RankCalls, wait: Wait | None, shown_end_ns: int, killed: int) -> CallPosition:
    call = _lost_first(seen, stood_in(seen))
    if wait is None and call is None:
        # Its program caught the error, and came to its end.
        missed = ((each, missed_group(met, each)) for each in seen.calls)
        looked = (CallPosition(f"looked {why} ({c.line})", c, framed=True) for c, why in missed if why)
        return next(looked, CallPosition())
    if wait is None:
        return CallPosition(call=call, framed=True)
    if call is not None:
        return CallPosition(_in_call(met, wait, call, killed), call, framed=_stood_there(wait, call))
    if killed:
        until = None if killed == signal.SIGSTOP else died_ns(met, wait.rank)
        return CallPosition(
            f"last seen; {struck_by(killed)} somewhere in here", own=(_last_ns(seen), until), framed=True
        )
    if seen.left is None:
        start, until = _own_code(met.ranks[wait.rank], seen)
        if start >= shown_end_ns:
            return CallPosition()
        took = f", {duration((until - start) / 1e9)}" if until is not None else ""
        return CallPosition(f"{OWN_CODE}{took}", own=(start, until))
    if seen.left.error:
        return CallPosition(f"ended with {seen.left.error.partition(':')[0]}")
    return CallPosition("" if seen.left.at_ns > shown_end_ns else "its program has ended")


def _lost_first(seen: RankCalls, call: Call | None) -> Call | None:
    """Return the call that lost the connection to a peer, where a later one only found it lost."""
    if call is None or not _is_lost(call):
        return call
    peers = {part.peer for part in call.begun.parts}
    return next(c for c in seen.calls if _is_lost(c) and {part.peer for part in c.begun.parts} == peers)


def _is_lost(call: Call) -> bool:
    return any(text in call.error for text in LOST_TEXTS)


def _last_ns(seen: RankCalls) -> int:
    end_ns = seen.calls[-1].end_ns if seen.calls else None
    return seen.head.at_ns if end_ns is None else end_ns


def _own_code(of_rank: RankCalls, seen: RankCalls) -> tuple[int, int | None]:
    """Return when a rank left the last call that counts, and when it went on (``None``: never)."""
    later = [call.start_ns for call in of_rank.calls[len(seen.calls) :]]
    return _last_ns(seen), min(later, default=of_rank.left.at_ns if of_rank.left is not None else None)


def _stood_there(wait: Wait, call: Call) -> bool:
    return MISMATCH not in call.error and bool(wait.waits_for or not call.error)


def _in_call(met: Meetings, wait: Wait, call: Call, killed: int) -> str:
    whom = named_ranks(wait.waits_for) if wait.waits_for else ""
    if call.end_ns is None and killed == signal.SIGABRT:
        return f"its process was aborted in this call ({call.line}{_too_long(met, call)})"
    if call.end_ns is None and killed:
        return f"{struck_by(killed)} in this call ({call.line})"
    if other := _other_group(met, wait, call):
        return other
    if call.end_ns is None:
        return f"waits for {whom} ({call.line})" if whom else f"stands here ({call.line})"
    if MISMATCH in call.error:
        return f"does not fit the call of {whom} ({call.line})" if whom else f"does not fit ({call.line})"
    took = duration((call.end_ns - call.start_ns) / 1e9)
    return f"waited for {whom} ({call.line}, {took})" if whom else f"raised here ({call.line}, {took})"


def _other_group(met: Meetings, wait: Wait, call: Call) -> str:
    """Say of who makes a group that the others made another one as their group of that number."""
    if call.name not in MAKES_GROUPS or not call.begun.makes:
        return ""
    took = "" if call.end_ns is None else f", {duration((call.end_ns - call.start_ns) / 1e9)}"
    others = _made_others(met, call, wait.waits_for)
    if not others and (missed := missed_group(met, call)):
        return f"looked {missed} ({call.line}{took})"
    if not others or len(others) < len(wait.waits_for):
        return ""
    looks = "looks" if call.end_ns is None else "looked"
    return f"{looks} under name {call.begun.makes}, {_where_another(others)} ({call.line}{took})"


def _made_others(met: Meetings, call: Call, ranks: Collection[int]) -> list[int]:
    """Return those of some ranks that made another group under the number of this one."""
    ops = _ops_of_number(met, call)
    return [rank for rank in ranks if ops.get(rank, call.begun.op) != call.begun.op]


def _ops_of_number(met: Meetings, call: Call) -> dict[int, str]:
    """Return which ranks each rank made a group of that it counted as this one."""
    meeting = next((m for m in met.meetings if any(e.call is call for e in m.ends.values())), None)
    return {} if meeting is None else {rank: end.call.begun.op for rank, end in meeting.ends.items()}


def _where_another(ranks: Sequence[int]) -> str:
    return f"where {named_ranks(ranks)} made another group"


def missed_group(met: Meetings, call: Call) -> str:
    """Say under which name a rank stood in vain for its group, and what the others did; else nothing.

    Args:
        met: What met what in the program.
        call: Any call; only one that makes a group, waited, and ended with an exception has an answer.
    """
    long = call.end_ns is not None and call.end_ns - call.start_ns >= STOOD_NS
    if call.name not in MAKES_GROUPS or not (call.begun.makes and call.error and long):
        return ""
    members = [int(number) for number in re.findall(r"\d+", call.begun.op)]
    others = [rank for rank in members if rank != call.rank]
    absent = [rank for rank in others if rank not in _ops_of_number(met, call)]
    under = f"under name {call.begun.makes}"
    if absent:
        return f"{under}, to which {named_ranks(absent)} never came"
    elsewhere = _made_others(met, call, others)
    return f"{under}, {_where_another(elsewhere)}" if elsewhere else under


def _too_long(met: Meetings, call: Call) -> str:
    """Say that a call was sent more than it took, if it was."""
    both = ((m.sent, m.received) for m in met.messages if m.sent is not None and m.received is not None)
    sizes = ((sent.part.size, got.part.size) for sent, got in both if got.call is call)
    return next((f": {came} bytes came, {room} expected" for came, room in sizes if came > room), "")
