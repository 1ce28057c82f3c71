"""Calls of any program as a Chrome/Perfetto trace: calls and loans of each rank, with messages as arrows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import msgspec

from ppwork.records.calls import Call
from ppwork.timeline.meetings import BufferLoan, Meetings, last_moment_ns
from ppwork.timeline.trace import END, LANES_PER_RANK, PID_BASE, Event, rank_rows

MAIN, LENT = "main", "buffer lent"


def call_trace(met: Meetings) -> bytes:
    """Return the trace of a program; calls that never returned last until the last moment of any rank.

    Args:
        met: The program's meetings.
    """
    zero = min(of_rank.head.at_ns for of_rank in met.ranks.values())
    until = last_moment_ns(met.ranks)
    events: list[Event] = []
    tids: dict[tuple[int, str], int] = {}

    def shown(call: Call, lane: str, category: str, end_ns: int | None, args: dict[str, Any]) -> Event:
        ts, dur = (call.start_ns - zero) / 1e3, max(0, (end_ns or until) - call.start_ns) / 1e3
        row = {"pid": PID_BASE + call.rank, "tid": tids[call.rank, lane], "ts": ts}
        return {"ph": "X", "name": call.name, "cat": category, **row, "dur": dur, "args": args}

    for rank, of_rank in met.ranks.items():
        slots = list(_slots([loan for loan in met.loans if loan.call.rank == rank], until))
        on_device = [(call, call.device) for call in of_rank.calls if call.device is not None]
        lanes = [MAIN, *map(_lane, of_rank.calls), *(lane for lane, _ in slots)]
        lanes = list(dict.fromkeys([*lanes, *(device.stream for _, device in on_device)]))
        first = (PID_BASE + rank) * LANES_PER_RANK
        tids |= {(rank, lane): first + index for index, lane in enumerate(lanes)}
        events += rank_rows(rank, f"rank {rank}", lanes, tids)
        for call in of_rank.calls:
            args = {"call": of_rank.text(call), "line": call.begun.site, "group": call.begun.group}
            args |= {"raised": call.error} if call.error else {}
            args |= {"came back": "never"} if call.end_ns is None else {}
            events.append(shown(call, _lane(call), "call", call.end_ns, args))
        events += [shown(loan.call, lane, "loan", loan.end_ns, {}) for lane, loan in slots]
        for call, device in on_device:
            lane, args = device.stream, {"call": of_rank.text(call), "line": call.begun.site}
            launched = replace(call, begun=msgspec.structs.replace(call.begun, at_ns=device.start_ns))
            events.append(shown(launched, lane, "device", device.end_ns, args))
    events += _arrows(met, tids, zero)
    return msgspec.json.encode({"traceEvents": events, "displayTimeUnit": "ms"})


def _lane(call: Call) -> str:
    return call.begun.thread or MAIN


def _slots(loans: list[BufferLoan], until: int) -> Iterator[tuple[str, BufferLoan]]:
    """Give each loan a row in which no other loan overlaps it: viewers nest slices of one row."""
    free: list[int] = []
    for loan in loans:
        slot = next((n for n, end in enumerate(free) if end <= loan.call.start_ns), len(free))
        free[slot : slot + 1] = [loan.end_ns or until]
        yield (f"{LENT} {slot + 1}" if slot else LENT), loan


def _arrows(met: Meetings, tids: dict[tuple[int, str], int], zero: int) -> Iterator[Event]:
    for number, message in enumerate(met.messages):
        if message.sent is None or message.received is None or message.received.blocking is None:
            continue
        sent, done = message.sent.call, message.received.blocking
        if done.end_ns is None or done.end_ns < sent.start_ns or message.received.raised:
            continue
        about = {"name": "message", "cat": "message", "id": number}
        leaves, comes = sent.start_ns, max(done.start_ns, done.end_ns - 1)
        yield {"ph": "s", **about, **_row(sent, tids), "ts": (leaves - zero) / 1e3}
        yield {**END, **about, **_row(done, tids), "ts": (comes - zero) / 1e3}


def _row(call: Call, tids: dict[tuple[int, str], int]) -> dict[str, Any]:
    return {"pid": PID_BASE + call.rank, "tid": tids[call.rank, _lane(call)]}
