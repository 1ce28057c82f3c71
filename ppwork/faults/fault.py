"""The words of the fault catalogue: a fault, its cases, and what good looks like for each.

Data only. What a run showed is in ``report``; nothing here says that a fault was caught.
"""

from __future__ import annotations

from typing import Any

import msgspec

from ppwork.plan import Plan
from ppwork.protocol.bounds import Bounds

LANE = "fault"
"""Lane of an injection in the timeline, so that it takes no commitment point's place in a failure record."""
ANY = "any"
"""In place of a role: whichever rank spoke first."""
NOBODY = "nobody"
"""In the place of a role: the ranks only have symptoms, and none of them is to be named first."""
ALL_IDS = ("rank", "role", "call_id", "chunk_index", "cache_epoch")
"""Keys of ``where`` of an error that knows the chunk."""
FAILS, SUCCEEDS, REFUSED, ENDS = "fails", "succeeds", "refused", "ends"
"""Ends that a run with a fault should have: a rank is named; nothing is noticed at all, because it is no
failure; refused before any rank started; stopped from outside, where no rank is to blame."""
CPU, GPU, TWO_HOSTS = "cpu", "GPU", "two hosts"
IN_RANK, IN_PLAN, OUTSIDE = "in a rank", "in the plan", "outside"


class Bound(msgspec.Struct, frozen=True):
    """Seconds that something may take after the injection, and why.

    >>> from ppwork.plan import Plan
    >>> Bound(2.0, after="freeze_s").seconds(Plan(freeze_s=3.0))
    5.0
    """

    plus_s: float
    after: str = ""
    """A bound of the plan that must pass first: ``stall_s``, ``freeze_s`` or ``timeout_s``."""
    because: str = ""

    def seconds(self, plan: Plan) -> float:
        """Return the bound under this plan."""
        return self.plus_s + (getattr(Bounds.of(plan), self.after) if self.after else 0.0)


SOON = Bound(2.0, because="a notice or a closed connection is heard within milliseconds; 2 s is the promise")
FROZEN = Bound(
    3.0,
    after="freeze_s",
    because="a stopped process looks like a slow one until freeze_s passed, and cannot end itself: "
    "the launcher kills it a second after the others",
)
STUCK = Bound(2.0, after="stall_s", because="code that computes looks like slow code until stall_s passed")
BLIND = Bound(
    3.0,
    after="stall_s",
    because="where no thread can run, the backstop of the watchdog fires a second later than it would",
)


class Expect(msgspec.Struct, frozen=True, kw_only=True):
    """The good outcome of one case."""

    outcome: str = FAILS
    first: tuple[str, ...] = ()
    """Roles of which one must be named first; ``ANY`` is every rank, ``NOBODY`` none. Empty: no failure."""
    errors: tuple[str, ...] = ()
    """The error type must be one of these."""
    where: tuple[str, ...] = ()
    """Keys that the error's ``where`` must have."""
    said: tuple[str, ...] = ()
    """Texts that its own must contain."""
    facts: tuple[str, ...] = ()
    """Names of ``FACTS`` that must hold in the run's folder."""
    notice: Bound = SOON
    """Time from the injection to the first rank that notices."""
    gone: Bound = SOON
    """Time from the injection until no rank is left; for a run that succeeds it does not apply."""


def differs(text: str) -> Expect:
    """Return what good looks like where a difference between ranks is found before anything is computed."""
    where = ("rank", "group")
    return Expect(first=(ANY,), errors=("ParityError",), where=where, said=(text,), facts=("no inference",))


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One way to inject a fault."""

    name: str
    injected: str
    """The injection, in words."""
    on: str = ""
    """Role of the rank in which it happens; ``follower`` is the last one."""
    place: str = IN_RANK
    needs: str = CPU
    plan: dict[str, Any] = {}
    """Fields that the plan needs for it; ``options`` are added to the plan's own."""
    expect: Expect


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """One fault of the catalogue."""

    id: str
    title: str
    good: str
    """The outcome that it must have, in words."""
    lesson: str
    cases: tuple[Case, ...]
