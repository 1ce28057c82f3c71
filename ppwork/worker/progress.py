"""The progress of this rank's main thread: the step that it is in, and whether it advances.

``enter`` and ``leave`` enclose stage code. They cost a microsecond or two, because they are in the hot path,
and put the step into the pulse, so that a rank that is killed in the step has told it. All judgement uses
samples, which the watchdog takes. Time is counted in samples, so a step's wait for its peers does not count
as its own time: a rank whose sum waits for a peer that loops for ever must not be blamed.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple

from ppwork.errors import StuckError
from ppwork.protocol.bounds import Bounds
from ppwork.records.failure import STACKS_IN_LOG
from ppwork.records.pulse import PulseState
from ppwork.records.spans import IMPORT, JOIN, WhichChunk

BRING_UP = (IMPORT, JOIN)
"""Steps before there is a stage; their bound is ``start_s``."""
LOOP = "loop"
"""Step of rank 0 between two calls of the plane in a user's loop; a stage's steps have its methods' names."""
PAUSED_S = 1.0
"""Seconds after which a late sample adds no time: the process may have been stopped."""

PAUSES = {
    "encode": "; a source that waits returns NOT_YET",
    LOOP: "; a source that pauses calls plane.heartbeat() meanwhile",
}


class Activity(NamedTuple):
    """One step that the main thread is in."""

    step: str
    """Its name, such as ``generate``."""
    which: WhichChunk | None
    """The chunk, with the ids that are known."""
    since_ns: int
    """``time.monotonic_ns`` of this host."""
    of_loop: bool = False
    """Whether this is code of a user's own loop, and not a stage's method."""


Told = Callable[[str, WhichChunk | None, int], object]
"""Hears of each step that begins: its name, its chunk, and its start; an empty name: no step goes on."""
_now: dict[int, Activity | None] = {}
"""Step by thread: two ranks can be threads of one process."""
_methods: dict[int, str] = {}
"""By thread: the stage's method that the step entered last, if several methods make up the step."""
_paused_ns: dict[int, tuple[int, int]] = {}
"""By thread: when its source first said that it has no chunk, and when it said so last."""
_told: dict[int, tuple[Told, ...]] = {}
"""By thread: one ``Told`` for each pipeline that the rank is in."""


def enter(step: str, which: WhichChunk | None = None, *, of_loop: bool = False) -> Activity | None:
    """Note that this thread, its rank's main one, begins a step; return the outer step, for ``leave``."""
    thread, now_ns = threading.get_ident(), time.monotonic_ns()
    outer, _now[thread] = _now.get(thread), Activity(step, which, now_ns, of_loop)
    _methods[thread] = step
    for told in _told.get(thread, ()):
        told(step, which, now_ns)
    return outer


def entering(method: str) -> None:
    """Note which of the stage's methods this thread's step calls next."""
    _methods[threading.get_ident()] = method


def method_of(thread: int) -> str:
    """Return the stage's method that a rank's main thread entered last; in a loop, the name of its step."""
    return _methods.get(thread, "")


def leave(outer: Activity | None) -> None:
    """Note that the step has ended."""
    thread = threading.get_ident()
    _now[thread] = outer
    for told in _told.get(thread, ()):
        told("" if outer is None else outer.step, outer and outer.which, time.monotonic_ns())


@contextmanager
def telling(told: Told) -> Iterator[None]:
    """Report this thread's steps to ``told`` as they begin, while the body runs."""
    thread = threading.get_ident()
    before = _told.get(thread, ())
    _told[thread] = (*before, told)
    try:
        yield
    finally:
        _told[thread] = before


def current(thread: int | None = None) -> Activity | None:
    """Return the step that a rank's main thread is in; ``None``: it is in the runtime's code, or waits.

    Args:
        thread: The thread's ident; default: the caller's.
    """
    return _now.get(threading.get_ident() if thread is None else thread)


def source_has(*, chunk: bool) -> None:
    """Note whether this thread's source has just returned a chunk, or ``NOT_YET``."""
    thread = threading.get_ident()
    if chunk:
        _paused_ns.pop(thread, None)
    else:
        now_ns = time.monotonic_ns()
        _paused_ns[thread] = _paused_ns.get(thread, (now_ns, 0))[0], now_ns


def paused_s(thread: int) -> float:
    """Return for how many seconds the source of a rank's main thread has said ``NOT_YET``; 0: it had a chunk.

    While its ``encode`` does not return, it says nothing, and the time stays as it is.
    """
    first_ns, last_ns = _paused_ns.get(thread, (0, 0))
    return (last_ns - first_ns) / 1e9


@contextmanager
def during(step: str) -> Iterator[None]:
    """Mark the body as this step."""
    outer = enter(step)
    try:
        yield
    finally:
        leave(outer)


@dataclass(frozen=True)
class Sample:
    """Observation of the main thread at one moment.

    Attributes:
        now_s: ``time.monotonic`` of this host.
        activity: The step that the thread is in.
        waiting: Whether it is inside ``torch.distributed``, or may wait for its device: such waits have their
            own bounds.
        entries: Number of entries that this rank has recorded; a new entry is progress of its links.
        making: Whether the user's own code creates a process group, and so waits for the group's other ranks.
        method: The stage's method that the step is in, if the step has several; empty: the step's name.
    """

    now_s: float
    activity: Activity | None
    waiting: bool = False
    entries: int = 0
    making: bool = False
    method: str = ""


def starting(activity: Activity | None) -> bool:
    """Say whether a rank is still being brought up."""
    return activity is not None and activity.step in BRING_UP


class Progress:
    """Judges samples of the main thread by the bounds of this rank.

    Attributes:
        state: Verdict on the last sample.
        own_s: Seconds that the step has worked itself.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._last: Sample | None = None
        self._idle_s = self._making_s = 0.0
        self.own_s = 0.0
        self.state = PulseState.STARTING

    def see(self, sample: Sample) -> StuckError | None:
        """Take one sample; return the error if the main thread is past its bound."""
        last = self._last or sample
        self._last = sample
        passed_s = sample.now_s - last.now_s
        if passed_s > PAUSED_S:
            passed_s = 0.0
        if sample.activity is not last.activity:
            self.own_s = self._idle_s = 0.0
            if sample.activity is not None:
                passed_s = min(passed_s, sample.now_s - sample.activity.since_ns / 1e9)
        at_work = sample.activity is not None and (starting(sample.activity) or not sample.waiting)
        if at_work:
            self.own_s += passed_s
        if at_work or sample.entries != last.entries:
            self._idle_s = 0.0
        else:
            self._idle_s += passed_s
        in_chunk = sample.activity is not None and not starting(sample.activity)
        self._making_s = self._making_s + passed_s if sample.making and in_chunk else 0.0
        error = self._past_bound(sample, at_work=at_work)
        self.state = PulseState.STUCK if error else self._state(sample.activity, at_work=at_work)
        return error

    def _state(self, activity: Activity | None, *, at_work: bool) -> PulseState:
        if starting(activity):
            return PulseState.STARTING
        if activity is None or not at_work:
            return PulseState.IDLE
        return PulseState.SLOW if self.own_s > self._bounds.stall_s / 2 else PulseState.BUSY

    def _past_bound(self, sample: Sample, *, at_work: bool) -> StuckError | None:
        bounds, activity = self._bounds, sample.activity
        where = {} if activity is None else activity.which or {}
        stacks = STACKS_IN_LOG
        if activity is not None and starting(activity):
            if self.own_s <= bounds.start_s:
                return None
            what = f"{activity.step!r} did not end within {bounds.start_s:g} s"
            check_first = f"{stacks}; a slow disk, or a network address that does not answer?"
        elif activity is not None and at_work:
            if self.own_s <= bounds.stall_s:
                return None
            what = f"The stage's {sample.method or activity.step} did not return within {bounds.stall_s:g} s"
            if activity.of_loop:
                what = f"The loop did not answer the chunk within {bounds.stall_s:g} s"
            if activity.step == LOOP:
                what = f"The loop made no call of the plane for {bounds.stall_s:g} s"
            check_first = (
                f"{stacks}: a loop without an end? Work that takes so long needs a larger timeout_s, "
                "and stall_s where the plan has one"
            )
            check_first += PAUSES.get(activity.step, "")
        elif self._making_s > bounds.alone_s:
            what = f"No other rank came within {bounds.alone_s:g} s to make a process group with this one"
            check_first = (
                f"{stacks}: all ranks of the job make a group together, before the loop; those of the mesh "
                "have one, `plane.tp.group`"
            )
        else:
            if self._idle_s <= bounds.idle_s:
                return None
            limit = f"each wait is bounded by {bounds.timeout_s:g} s"
            what = f"Nothing moved for {bounds.idle_s:g} s, though {limit}"
            check_first = f"{stacks}: which call ignores its bound?"
        return StuckError(f"{what}.", where=where, check_first=check_first)
