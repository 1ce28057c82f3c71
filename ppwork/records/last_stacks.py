"""The last stacks of a rank whose end Python cannot tell: in the run folder, where no console is kept.

``faulthandler`` writes them, in C: at a crash (SIGSEGV, SIGABRT and the like), at SIGTERM before it ends the
process, and where the watchdog's backstop does, since code that holds Python's lock lets no thread run. For a
crash it has one file. That is the folder's, which outlives everything; a peer that lost the rank shows on the
console what it finds there. Of SIGKILL, SIGSTOP and ``os._exit`` nothing can be written by anybody.
"""

from __future__ import annotations

import faulthandler
import fcntl
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ppwork.records.files import read_within

MOST_BYTES = 1 << 20
"""That are read of a file: each of the dumps has at most a hundred threads of a hundred calls."""
CRASH, BACKSTOP = "Fatal Python error: ", "Timeout ("
"""Beginnings of the line above a dump; above the one of SIGTERM there is none."""
_CRASHES = {
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
    "Floating-point exception": signal.SIGFPE,
}
_shown_by_us = False
"""Whether it was ``show_on_console`` that turned faulthandler on: a user's own is left as it is."""
_taken: list[IO[bytes]] = []
"""Files of others whose stacks this process shows, locked for as long as it lives."""
_kept: list[IO[bytes]] = []
"""The one file that stacks go to now."""


def stacks_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's last stacks; it is gone once the rank has left with nothing in it."""
    return Path(run_dir) / f"stacks-rank{rank}.txt"


def last_stacks(run_dir: Path, rank: int) -> str:
    """Return what a rank left, as faulthandler writes it; empty: nothing, or it keeps none."""
    try:
        return read_within(stacks_file(run_dir, rank), MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def signal_of(stacks: str) -> int:
    """Return the number of the signal that ended the rank which left these stacks; 0: none did.

    >>> int(signal_of("Fatal Python error: Segmentation fault"))
    11
    """
    lines = stacks.splitlines()
    if (crash := next((line for line in lines if line.startswith(CRASH)), None)) is not None:
        return _CRASHES.get(crash.removeprefix(CRASH), signal.SIGABRT)  # Python ends its own so, too
    if any(line.startswith(BACKSTOP) for line in lines) or not stacks.strip():
        return 0
    return signal.SIGTERM


def crashes(run_dir: Path) -> dict[int, str]:
    """Return by rank the stacks of those that crashed, or that the backstop of their watchdog ended.

    For one process to show them: of those that nobody else of this host has taken by now.
    """
    found: dict[int, str] = {}
    for path in sorted(Path(run_dir).glob("stacks-rank*.txt")):
        number = path.stem.removeprefix("stacks-rank")
        if number.isdecimal() and (text := last_stacks(run_dir, int(number))).startswith((CRASH, BACKSTOP)):
            with suppress(OSError):
                file = path.open("rb")
                _taken.append(file)  # the lock goes with it
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found[int(number)] = text
    return found


def show_on_console() -> None:
    """Have a crash in C++ tell the Python line that called it, where the user has not asked for that."""
    global _shown_by_us  # noqa: PLW0603  as faulthandler itself, one for the process
    if not faulthandler.is_enabled():
        with suppress(RuntimeError, ValueError, OSError, AttributeError):  # a standard error that is no file
            faulthandler.enable()
            _shown_by_us = True


@contextmanager
def kept(run_dir: Path, rank: int) -> Iterator[IO[bytes] | None]:
    """Keep the last stacks of this process in the folder, while the body runs.

    Yields:
        The file, for the watchdog's backstop; of a rank that is in two pipelines that of the first one's
        folder. ``None``: the user has set faulthandler up himself, and everything is as it was.

    Raises:
        OSError: The file cannot be made (this rank).
    """
    if _kept or not _shown_by_us:
        yield _kept[0] if _kept else None
        return
    path, handler = stacks_file(run_dir, rank), signal.getsignal(signal.SIGTERM)
    with path.open("wb", buffering=0) as file:
        _kept.append(file)
        faulthandler.enable(file=file)
        faulthandler.register(signal.SIGTERM, file=file, all_threads=True, chain=True)
        try:
            yield file
        finally:
            _give_back()
            if (now := signal.getsignal(signal.SIGTERM)) is not handler and now is not None:
                with suppress(ValueError):  # the body has set one, and this is not the main thread
                    signal.signal(signal.SIGTERM, now)
    with suppress(OSError):
        if path.stat().st_size == 0:
            path.unlink()


def _give_back() -> None:
    """Show crashes on the console again, as before."""
    if _kept:
        _kept.clear()
        faulthandler.unregister(signal.SIGTERM)
        with suppress(RuntimeError, ValueError, OSError, AttributeError):
            faulthandler.enable()


# A child that is forked is no rank: what ends it is nothing to tell of this one.
os.register_at_fork(after_in_child=_give_back)
