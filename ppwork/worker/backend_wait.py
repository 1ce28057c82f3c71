"""Puts a frame of ours round a backend's wait, and knows which handles were let go without one.

``Work.wait``, called by the program itself, is a C call: a thread in it shows only the program's frame, as a
thread that computes does. By our frame the watchdog sees that it waits; it costs a fifth of a microsecond.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from functools import wraps
from types import FrameType
from typing import Any

from ppwork.protocol.envelope import Ids
from ppwork.records.spans import HANDLE_LET_GO, Recorder
from ppwork.worker.user_lines import outwards

log = logging.getLogger(__name__)

ASKS = ("wait", "synchronize", "get_future", "is_completed", "block_current_stream")
"""Methods of a handle by which the program may know that its call is done, or have others wait for it."""
UNWAITED = (
    "by chunk %d this rank let go of a handle that nobody had waited for, at %s: the tensor may have been "
    "used before the call was done; keep what it returns and call `wait()` on it (said once for each line)"
)
_lent: dict[int, weakref.ref[Any]] = {}
"""Handles that were not asked yet, by address: each tells when it is let go."""
_let_go: list[str] = []
"""Lines of those that were; Python may free one at any time, even while a line is logged."""
_told: set[str] = set()


def framed(wait: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that makes the wait, or another question to a handle, inside our frame."""

    @wraps(wait)
    def framed_wait(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        if (said := wait(*args, **kwargs)) is not False and args:
            _lent.pop(id(args[0]), None)
        return said

    framed_wait._torchdynamo_inline = wait  # type: ignore[attr-defined]  # torch's compiler uses this instead
    return framed_wait


def lend(work: object, line: str) -> None:
    """Note a handle that the program got at this line."""
    _lent[id(work)] = weakref.ref(work, lambda _: _let_go.append(line))


def tell_of_handles(ids: Ids, recorder: Recorder) -> None:
    """Log and record the handles that were let go before they were asked, up to the end of this chunk."""
    while _let_go:
        if (line := _let_go.pop()) not in _told:
            _told.add(line)
            recorder.instant(HANDLE_LET_GO, ids=ids.where(), text=line)
            log.warning(UNWAITED, ids.chunk_index, line)


def is_in_one(frame: FrameType | None) -> bool:
    """Say whether the thread of this frame is inside such a wait."""
    return any(each.f_code.co_filename == __file__ for each in outwards(frame))
