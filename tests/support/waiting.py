"""Waits for a fact, each with a bound; no test sleeps to be ready."""

from __future__ import annotations

import time

import psutil

END_S = 30.0
"""No test job may take longer than this to end by itself."""


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def wait_for(fact, deadline_s: float = END_S):
    """Wait for a fact (a function that becomes true) and return it; fail with its name at the deadline."""
    end, pause_s = time.monotonic() + deadline_s, 0.001
    while time.monotonic() < end:
        if value := fact():
            return value
        time.sleep(pause_s)  # the interval of asking, not a wait to be ready
        pause_s = min(2 * pause_s, 0.02)
    raise AssertionError(f"not true within {deadline_s} s: {getattr(fact, '__name__', fact)}")
