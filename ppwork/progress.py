"""Whether this rank's main thread gets on: idle, busy, slow or stuck. No thread here: the watchdog samples.

Time is counted in samples, so that what a step of the stage waits for its peers does not count as its own:
a rank whose sum waits for a peer that loops for ever must not be the one that is blamed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppwork.errors import StuckError
from ppwork.pulse import PulseState

if TYPE_CHECKING:
    from ppwork.activity import Activity
    from ppwork.bounds import Bounds

BRING_UP = ("import torch", "join")
"""Steps before there is a stage; their bound is ``start_s``."""
PAUSED_S = 1.0
"""A sample that comes so late after the last one counts nothing: the process may have been stopped."""


@dataclass(frozen=True)
class Sample:
    """What was seen of the main thread at one moment.

    Attributes:
        now_s: ``time.monotonic`` of this host.
        activity: The step it is in.
        waiting: Whether it is inside ``torch.distributed``, whose waits have bounds of their own.
        entries: Entries that this rank has recorded; a new one is progress of its links.
    """

    now_s: float
    activity: Activity | None
    waiting: bool = False
    entries: int = 0


def starting(activity: Activity | None) -> bool:
    """Say whether a rank is still being brought up."""
    return activity is not None and activity.step in BRING_UP


class Progress:
    """Judges samples of the main thread.

    Args:
        bounds: Of this rank.

    Attributes:
        state: What the last sample showed.
        own_s: How long the step has been at work itself.
    """

    def __init__(self, bounds: Bounds) -> None:
        self._bounds = bounds
        self._last: Sample | None = None
        self._idle_s = 0.0
        self.own_s = 0.0
        self.state = PulseState.STARTING

    def see(self, sample: Sample) -> StuckError | None:
        """Take one sample; return what to say if the main thread is past its bound."""
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
        error = self._past_bound(sample.activity, at_work=at_work)
        self.state = PulseState.STUCK if error else self._state(sample.activity, at_work=at_work)
        return error

    def _state(self, activity: Activity | None, *, at_work: bool) -> PulseState:
        if starting(activity):
            return PulseState.STARTING
        if activity is None or not at_work:
            return PulseState.IDLE
        return PulseState.SLOW if self.own_s > self._bounds.stall_s / 2 else PulseState.BUSY

    def _past_bound(self, activity: Activity | None, *, at_work: bool) -> StuckError | None:
        bounds = self._bounds
        where = {} if activity is None or activity.ids is None else activity.ids.where()
        stacks = "the stacks of all threads at the end of this rank's log"
        if activity is not None and starting(activity):
            if self.own_s <= bounds.start_s:
                return None
            what = f"{activity.step!r} did not end within {bounds.start_s:g} s"
            check_first = f"{stacks}; a slow disk, or a network address that does not answer?"
        elif activity is not None and at_work:
            if self.own_s <= bounds.stall_s:
                return None
            what = f"The stage's {activity.step} did not return within {bounds.stall_s:g} s"
            check_first = f"{stacks}: a loop without an end? Work that takes so long needs a larger stall_s"
        else:
            if self._idle_s <= bounds.idle_s:
                return None
            limit = f"each wait is bounded by {bounds.timeout_s:g} s"
            what = f"Nothing moved for {bounds.idle_s:g} s, though {limit}"
            check_first = f"{stacks}: which call ignores its bound?"
        return StuckError(f"{what}.", where=where, check_first=check_first)
