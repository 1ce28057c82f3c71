"""A wait of the backend, with a frame of ours round it: by that the watchdog knows that a thread is in one.

``Work.wait`` of a program's own is a call of C, so a thread in it has no frame but the program's, as one that
computes has. The frame costs a tenth of a microsecond.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

from ppwork.worker.user_lines import outwards


def framed(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that waits for peers, with the frame round it."""

    @wraps(wait)
    def framed_wait(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        return wait(*args, **kwargs)

    framed_wait._torchdynamo_inline = wait  # type: ignore[attr-defined]  # torch's compiler takes that one
    return framed_wait


def is_in_one(frame: FrameType | None) -> bool:
    """Say whether a thread that is in this frame is in such a wait."""
    return any(each.f_code.co_filename == __file__ for each in outwards(frame))
