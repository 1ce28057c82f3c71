"""Puts a frame of ours round a backend's wait: by this frame the watchdog sees that a thread waits.

``Work.wait``, called by the program itself, is a C call: a thread in it shows only the program's frame, as a
thread that computes does. Our frame costs a tenth of a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

from ppwork.worker.user_lines import outwards


def framed(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes the wait inside our frame."""

    @wraps(wait)
    def framed_wait(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return wait(*args, **kwargs)

    framed_wait._torchdynamo_inline = wait  # type: ignore[attr-defined]  # torch's compiler uses this instead
    return framed_wait


def is_in_one(frame: FrameType | None) -> bool:
    """Say whether the thread of this frame is inside such a wait."""
    return any(each.f_code.co_filename == __file__ for each in outwards(frame))
