"""Bounds on every wait of a rank, in seconds: the plan's bounds as they apply on this rank."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ppwork.errors import PlanError
from ppwork.protocol.plan import DAY_S, TIMEOUT_VARIABLE, PipelinePlan

START_S = 60.0
"""Least bound on importing torch and joining: on a loaded machine with a cold disk these take a minute."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of one rank, in seconds.

    Attributes:
        timeout_s: On every wait for a peer.
        stall_s: On one step of a stage, without the time that the step waits for peers.
        freeze_s: On how long a peer's process may be stopped.
    """

    timeout_s: float
    stall_s: float
    freeze_s: float

    @classmethod
    def of(cls, plan: PipelinePlan) -> Bounds:
        """Derive the bounds from a plan and this process's environment; raises as ``bring_up_timeout_s``."""
        timeout_s = bring_up_timeout_s(plan)
        return cls(timeout_s, plan.stall_s or 0.8 * timeout_s, plan.freeze_s)

    @property
    def idle_s(self) -> float:
        """Bound on the time without any progress while no stage code runs.

        A wait ends by itself after ``timeout_s``, and the rank needs a few seconds more to tell its peers and
        leave. So only a call that ignores its own bound reaches this one.
        """
        return 1.5 * self.timeout_s + 5.0

    @property
    def alone_s(self) -> float:
        """Bound on creating a group inside a chunk, which needs all ranks of the group.

        If a peer is missing because it is stuck, its own bound (``stall_s``) has to pass before this one. The
        bound of a rank that waits for this rank (``timeout_s``) has to pass after this one.
        """
        return min(self.stall_s + 1.0, (self.stall_s + self.timeout_s) / 2)

    @property
    def start_s(self) -> float:
        """Bound on importing torch and on joining."""
        return max(START_S, self.idle_s)


def bring_up_timeout_s(plan: PipelinePlan) -> float:
    """Return the bound on every wait: the plan's, unless ``SCOPE_DIST_TIMEOUT_S`` overrides it.

    Raises:
        PlanError: The variable is not a number in range (the launcher, or every rank that has the variable).
    """
    text = os.environ.get(TIMEOUT_VARIABLE)
    if text is None:
        return plan.timeout_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < DAY_S:
        raise PlanError(
            f"{TIMEOUT_VARIABLE} was {text!r}; it must be a number of seconds above 0 and below {DAY_S}.",
            check_first="unset it to use the plan's timeout_s",
        )
    return seconds
