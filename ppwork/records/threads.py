"""Threads that died on a rank: Python goes on without them, so the rank records each one when it dies.

No torch. An exception that a pool catches from a task (``concurrent.futures``) ends no thread, and is not
seen.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec

from ppwork.errors import message_of
from ppwork.records.failure import legible, source_of
from ppwork.records.files import read_json, write_whole

MOST = 16
"""Most dead threads recorded of a rank: a pool whose threads die one after another must not fill the disk."""

LONGEST = 400
"""Most characters of a thread's error."""


class DeadThread(msgspec.Struct, frozen=True, kw_only=True):
    """A thread that an exception ended."""

    rank: int
    name: str
    error: str
    """The error's type, and the first line of its message."""
    source: str
    """``file:line`` of the user's own code; empty if the traceback has none."""
    at_ns: int
    """``time.monotonic_ns`` of that rank's host."""

    def __str__(self) -> str:
        at = f" at {self.source}" if self.source else ""
        return f"thread {self.name!r} died{at} of {self.error}"


def threads_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a rank's dead threads; the file exists once a thread has died."""
    return Path(run_dir) / f"threads-rank{rank}.json"


def dead_threads(run_dir: Path, rank: int) -> list[DeadThread]:
    """Return the threads that died on a rank, in order; none if the file does not read."""
    return read_json(threads_file(run_dir, rank), list[DeadThread]) or []


@contextmanager
def written_down(run_dir: Path, rank: int) -> Iterator[None]:
    """Record each thread of this process that dies while the body runs; its traceback is still shown."""
    show, died = threading.excepthook, list[DeadThread]()

    def shown(args: threading.ExceptHookArgs) -> None:
        try:
            show(args)
        finally:
            if args.exc_value is not None and args.exc_type is not SystemExit and len(died) < MOST:
                died.append(_of(args.exc_value, rank, args.thread))
                with suppress(OSError):  # a full disk: the traceback is shown at least
                    write_whole(threads_file(run_dir, rank), msgspec.json.encode(died))

    threading.excepthook = shown
    try:
        yield
    finally:
        if threading.excepthook is shown:  # else another hook was put on top, which calls this one
            threading.excepthook = show


def _of(error: BaseException, rank: int, thread: threading.Thread | None) -> DeadThread:
    said = message_of(error).partition("\n")[0].removesuffix(".")  # it is quoted within a sentence
    return DeadThread(
        rank=rank,
        name=legible(thread.name if thread is not None else "?"),
        error=legible(f"{type(error).__name__}: {said[:LONGEST]}".removesuffix(": ")),
        source=legible(source_of(error)),
        at_ns=time.monotonic_ns(),
    )
