"""The end of a failed process: a hard exit, because Python's own exit could wait for ever or abort."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

from ppwork.process import flush_files

_in_short: list[tuple[BaseException, str]] = []


def show_in_short(error: BaseException, text: str) -> None:
    """If nothing catches this error, show this text for it: its traceback is already in another place."""
    _in_short.append((error, text))


def leave_hard() -> NoReturn:
    """End a failed process once its traceback is shown: no group's destructor may wait for a kernel."""
    with suppress(OSError):  # the disk is full, or nobody reads the output
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    flush_files()
    os._exit(1)


def leave_hard_last() -> NoReturn:
    """Run the process's exit handlers, and then ``leave_hard``."""
    atexit.unregister(leave_hard_last)
    try:
        atexit._run_exitfuncs()
    finally:
        leave_hard()


def leave_hard_if_uncaught() -> None:
    """If an uncaught exception ends this process, leave hard with code 1, the code that Python would use.

    A lane may wait in gloo for a peer that is about to leave. If the wait ends while Python takes its modules
    apart, Python ends the thread inside C++, which aborts the process ("terminate called without an active
    exception"), and torchrun names the wrong rank. Whether the user's code catches the exception, and its
    exit code then, is its own business: so this takes effect only when Python shows an uncaught exception.
    """
    show = sys.excepthook
    if getattr(show, "_ppwork", False):
        return

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if in_short := next((text for known, text in _in_short if known is error), ""):
            sys.stderr.write(in_short)
        else:
            show(kind, error, trace)
        if not issubclass(kind, KeyboardInterrupt):  # that one ends the process by its signal
            atexit.unregister(leave_hard)
            atexit.register(leave_hard_last)  # registered last, so it runs first

    shown._ppwork = True  # type: ignore[attr-defined]
    sys.excepthook = shown
