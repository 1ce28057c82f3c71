"""A trace against the trace-event format: of a bad one a viewer shows nothing, without a word."""

from __future__ import annotations

import bisect
from typing import Annotated, Any, Literal

import msgspec

Name = Annotated[str, msgspec.Meta(min_length=1)]
Microseconds = Annotated[float, msgspec.Meta(ge=0)]
Number = Annotated[int, msgspec.Meta(ge=0)]


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="ph"):
    name: Name
    pid: Number
    tid: Number


class Metadata(_Event, frozen=True, kw_only=True, tag="M"):
    """The name or the place of a process or thread row."""

    name: Literal["process_name", "process_sort_index", "thread_name", "thread_sort_index"]
    args: dict[str, str | int]


class Slice(_Event, frozen=True, kw_only=True, tag="X"):
    """A span."""

    cat: str
    ts: Microseconds
    dur: Microseconds
    args: dict[str, Any] = {}


class InstantEvent(_Event, frozen=True, kw_only=True, tag="i"):
    """An instant."""

    cat: str
    ts: Microseconds
    s: Literal["t", "p", "g"]
    args: dict[str, Any] = {}


class _Flow(_Event, frozen=True, kw_only=True):
    cat: str
    ts: Microseconds
    id: Number


class FlowBegin(_Flow, frozen=True, kw_only=True, tag="s"):
    """An arrow leaves the slice that is open here."""


class FlowStep(_Flow, frozen=True, kw_only=True, tag="t"):
    """An arrow passes through the slice that is open here."""


class FlowEnd(_Flow, frozen=True, kw_only=True, tag="f"):
    """An arrow ends in the slice that is open here (``bp`` "e"; without it, in the next one)."""

    bp: Literal["e"]


Event = Metadata | Slice | InstantEvent | FlowBegin | FlowStep | FlowEnd


def check_trace(data: bytes) -> None:
    """Check a trace against the trace-event format, as far as ``ppwork.timeline.trace`` uses it.

    Raises:
        ValueError: Names the first bad event by its place: a key is missing or of a wrong type, a time is
            negative, a row has no name, slices of one thread overlap without nesting, a flow does not begin
            and end once in order of time, or a step of it lies in no slice.
    """
    try:
        document = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise ValueError(f"the trace is not a JSON object: {error}") from error
    listed = document.get("traceEvents")
    if not isinstance(listed, list) or not listed:
        raise ValueError("the trace has no list of events under traceEvents")
    events = [_checked(place, event) for place, event in enumerate(listed)]
    _check_names(events)
    _check_flows(events, _check_nesting(events))


def _bad(place: int, event: Event, why: str) -> ValueError:
    return ValueError(f"event {place} ({event.name!r} in thread {event.tid} of process {event.pid}): {why}")


def _checked(place: int, event: object) -> Event:
    try:
        converted: Event = msgspec.convert(event, Event)
    except msgspec.ValidationError as error:
        raise ValueError(f"event {place} ({event!r:.120}): {error}") from error
    return converted


def _check_names(events: list[Event]) -> None:
    named: set[tuple[str, int, int]] = set()
    for place, event in enumerate(events):
        if isinstance(event, Metadata):
            key, kind = ("name", str) if event.name.endswith("_name") else ("sort_index", int)
            if not isinstance(event.args.get(key), kind) or event.args[key] == "":
                raise _bad(place, event, f"its args have no {key}")
            named.add((event.name, event.pid, event.tid if event.name == "thread_name" else -1))
    for place, event in enumerate(events):
        if ("process_name", event.pid, -1) not in named:
            raise _bad(place, event, "its process has no name")
        if ("thread_name", event.pid, event.tid) not in named:
            raise _bad(place, event, "its thread has no name")


Outline = list[tuple[int, int]]
"""The outermost slices of a thread, in order."""


def _ns(microseconds: float) -> int:
    return round(microseconds * 1000)


def _check_nesting(events: list[Event]) -> dict[tuple[int, int], Outline]:
    threads: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
    for place, event in enumerate(events):
        if isinstance(event, Slice):
            start = _ns(event.ts)
            threads.setdefault((event.pid, event.tid), []).append((start, start + _ns(event.dur), place))
    outlines: dict[tuple[int, int], Outline] = {thread: [] for thread in threads}
    for thread, slices in threads.items():
        still_open: list[int] = []
        for start, end, place in sorted(slices, key=lambda item: (item[0], -item[1])):
            while still_open and still_open[-1] <= start:
                still_open.pop()
            if still_open and end > still_open[-1]:
                raise _bad(place, events[place], "it overlaps another slice of its thread without nesting")
            if not still_open:
                outlines[thread].append((start, end))
            still_open.append(end)
    return outlines


def _inside(outline: Outline, at: int) -> bool:
    before = bisect.bisect_right(outline, at, key=lambda slice_: slice_[0])
    return any(at <= end for _, end in outline[max(0, before - 2) : before])


def _check_flows(events: list[Event], outlines: dict[tuple[int, int], Outline]) -> None:
    flows: dict[int, list[tuple[int, Event, int]]] = {}
    for place, event in enumerate(events):
        if isinstance(event, FlowBegin | FlowStep | FlowEnd):
            at = _ns(event.ts)
            if not _inside(outlines.get((event.pid, event.tid), []), at):
                raise _bad(place, event, "this step of a flow lies in no slice")
            flows.setdefault(event.id, []).append((place, event, at))
    for steps in flows.values():
        for kind, word in ((FlowBegin, "begin"), (FlowEnd, "end")):
            found = [place for place, event, _ in steps if isinstance(event, kind)]
            if len(found) != 1:
                place, event, _ = steps[0] if not found else next(s for s in steps if s[0] == found[1])
                raise _bad(place, event, f"its flow must {word} once, and does so {len(found)} times")
        begin = next(at for _, event, at in steps if isinstance(event, FlowBegin))
        end = next(at for _, event, at in steps if isinstance(event, FlowEnd))
        for place, event, at in steps:
            if not begin <= at <= end:
                raise _bad(place, event, "it lies outside the time of its flow")
