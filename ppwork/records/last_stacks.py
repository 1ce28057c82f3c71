"""The last stacks of a rank whose end Python cannot report: in the run folder, as no console may be kept.

``faulthandler`` writes them, in C: at a crash (SIGSEGV, SIGABRT and the like), at SIGTERM before it ends the
process, and when the watchdog's backstop fires, because code that holds the GIL lets no thread run. For a
crash it can write to one file only. That is the folder's, which survives everything; a peer that lost the
rank shows the file on the console. At SIGKILL, SIGSTOP and ``os._exit`` nothing can be written.
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
"""Most bytes read of a file: each dump has at most a hundred threads of a hundred calls."""
CRASH, BACKSTOP = "Fatal Python error: ", "Timeout ("
"""Prefixes of the line above a dump; above a dump at SIGTERM there is none."""
_CRASHES = {
    "Segmentation fault": signal.SIGSEGV,
    "Bus error": signal.SIGBUS,
    "Illegal instruction": signal.SIGILL,
    "Floating point exception": signal.SIGFPE,
    "Floating-point exception": signal.SIGFPE,
}
_shown_by_us = False
"""Whether ``show_on_console`` turned faulthandler on: a user's own setting is left as it is."""
_taken: list[IO[bytes]] = []
"""Files of other ranks whose stacks this process shows, locked for as long as the process lives."""
_kept: list[IO[bytes]] = []
"""The one file to which stacks go now."""


def stacks_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's last stacks; the rank removes an empty file when it leaves."""
    return Path(run_dir) / f"stacks-rank{rank}.txt"


def last_stacks(run_dir: Path, rank: int) -> str:
    """Return a rank's stacks, as faulthandler writes them; empty if there are none."""
    try:
        return read_within(stacks_file(run_dir, rank), MOST_BYTES).decode(errors="replace")
    except OSError:
        return ""


def signal_of(stacks: str) -> int:
    """Return the number of the signal that ended the rank with these stacks; 0 if none did.

    >>> int(signal_of("Fatal Python error: Segmentation fault"))
    11
    """
    lines = stacks.splitlines()
    if (crash := next((line for line in lines if line.startswith(CRASH)), None)) is not None:
        return _CRASHES.get(crash.removeprefix(CRASH), signal.SIGABRT)  # Python's own fatal errors abort, too
    by_itself = any(line.startswith(BACKSTOP) for line in lines) or not stacks.strip()
    return 0 if by_itself else signal.SIGTERM


def crashes(run_dir: Path) -> dict[int, str]:
    """Return, by rank, the stacks of ranks that crashed or were ended by their watchdog's backstop.

    Only one process of this host shows a rank's stacks: ranks that another process has taken are left out.
    """
    found: dict[int, str] = {}
    for path in sorted(Path(run_dir).glob("stacks-rank*.txt")):
        number = path.stem.removeprefix("stacks-rank")
        if number.isdecimal() and (text := last_stacks(run_dir, int(number))).startswith((CRASH, BACKSTOP)):
            with suppress(OSError):
                file = path.open("rb")
                _taken.append(file)  # keeps the lock
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                found[int(number)] = text
    return found


def show_on_console() -> None:
    """Let a crash in C++ print the Python line that called it, unless the user has set faulthandler up."""
    global _shown_by_us  # noqa: PLW0603  one for the process, as faulthandler itself
    if not faulthandler.is_enabled():
        with suppress(RuntimeError, ValueError, OSError, AttributeError):  # standard error is not a file
            faulthandler.enable()
            _shown_by_us = True


@contextmanager
def kept(run_dir: Path, rank: int) -> Iterator[IO[bytes] | None]:
    """Keep the last stacks of this process in the folder while the body runs.

    Yields:
        The file, for the watchdog's backstop; for a rank in two pipelines, the file of the first one's
        folder. ``None`` if the user has set faulthandler up himself: then nothing changes.

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
                with suppress(ValueError):  # the body has set a handler, and this is not the main thread
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


# A forked child is not a rank: its end says nothing about this rank.
os.register_at_fork(after_in_child=_give_back)
