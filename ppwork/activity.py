"""What this rank's main thread is in: set round each step of a stage, looked at by the watchdog.

Setting costs half a microsecond, because it is in the hot path; all judging is done by whoever looks.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ppwork.envelope import Ids


class Activity(NamedTuple):
    """One step that the main thread is in."""

    step: str
    """Such as ``generate``."""
    ids: Ids | None
    since_ns: int
    """``time.monotonic_ns`` of this host."""


_now: Activity | None = None


def enter(step: str, ids: Ids | None = None) -> Activity | None:
    """Say that the main thread begins a step; return the one outside it, for ``leave``."""
    global _now
    outer, _now = _now, Activity(step, ids, time.monotonic_ns())
    return outer


def leave(outer: Activity | None) -> None:
    """Say that the step has ended."""
    global _now  # noqa: PLW0603  as above
    _now = outer


def current() -> Activity | None:
    """Return the step that the main thread is in; ``None``: the runtime's own code, or waiting."""
    return _now


@contextmanager
def during(step: str) -> Iterator[None]:
    """Say that the body is this step."""
    outer = enter(step)
    try:
        yield
    finally:
        leave(outer)
