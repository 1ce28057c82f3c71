"""Bounds on everything that a rank waits for, in seconds: the plan's, as they apply on this rank."""

from __future__ import annotations

import os
from dataclasses import dataclass

from ppwork.errors import PlanError
from ppwork.protocol.plan import DAY_S, TIMEOUT_VARIABLE, PipelinePlan

START_S = 60.0
"""Least bound on importing torch and joining: from a cold disk on a loaded machine it takes a minute."""


@dataclass(frozen=True)
class Bounds:
    """The bounds of one rank, in seconds.

    Attributes:
        timeout_s: Of every wait for a peer.
        stall_s: Of one step of a stage, the time that it waits for peers not counted.
        freeze_s: Of a stop of a peer's process.
    """

    timeout_s: float
    stall_s: float
    freeze_s: float

    @classmethod
    def of(cls, plan: PipelinePlan) -> Bounds:
        """Return what a plan and this process's environment give; raises as ``bring_up_timeout_s``."""
        timeout_s = bring_up_timeout_s(plan)
        return cls(timeout_s, plan.stall_s or 0.8 * timeout_s, plan.freeze_s)

    @property
    def idle_s(self) -> float:
        """Bound on no progress at all while the stage is not at work.

        A wait ends by itself after ``timeout_s``, and telling the peers and leaving take a few seconds more:
        only a call that ignores its own bound gets so far.
        """
        return 1.5 * self.timeout_s + 5.0

    @property
    def alone_s(self) -> float:
        """Bound on making a group in a chunk, for which all its ranks must come.

        A peer that does not come because it is stuck itself is to be told first, by ``stall_s``; who waits
        for this rank is to be told last, by ``timeout_s``.
        """
        return min(self.stall_s + 1.0, (self.stall_s + self.timeout_s) / 2)

    @property
    def start_s(self) -> float:
        """Bound on importing torch, and on joining."""
        return max(START_S, self.idle_s)


def bring_up_timeout_s(plan: PipelinePlan) -> float:
    """Return the bound on every wait: the plan's, unless ``SCOPE_DIST_TIMEOUT_S`` overrides it.

    Raises:
        PlanError: The variable is no such number (the launcher, or every rank that has it).
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
