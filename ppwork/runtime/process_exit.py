"""The end of a failed process: hard, where Python's own end could wait for ever or abort it."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from contextlib import suppress
from types import TracebackType
from typing import NoReturn

_in_short: list[tuple[BaseException, str]] = []


def show_in_short(error: BaseException, text: str) -> None:
    """Have an error that nobody catches shown by this text: its traceback is elsewhere."""
    _in_short.append((error, text))


def leave_hard() -> NoReturn:
    """End a failed process once its traceback is shown: no destructor of a group may wait for a kernel."""
    with suppress(OSError):  # a full disk, or nobody reads any more
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(1)


def leave_hard_last() -> NoReturn:
    """Do what was registered for the end of the process, and then ``leave_hard``."""
    atexit.unregister(leave_hard_last)
    try:
        atexit._run_exitfuncs()
    finally:
        leave_hard()


def leave_hard_if_uncaught() -> None:
    """Leave hard with code 1, as Python would, if an exception that nobody catches ends this process.

    A lane may wait in gloo for a peer that is about to leave. Where that wakes it while Python takes its
    modules apart, Python ends the thread inside C++, which aborts the process ("terminate called without an
    active exception"), and torchrun names the wrong rank. Whether an exception is caught, and by which code a
    process ends that catches it, is its own business: so this begins where Python shows what nobody caught.
    """
    show = sys.excepthook
    if getattr(show, "_ppwork", False):
        return

    def shown(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if in_short := next((text for known, text in _in_short if known is error), ""):
            sys.stderr.write(in_short)
        else:
            show(kind, error, trace)
        if not issubclass(kind, KeyboardInterrupt):  # that ends by its signal
            atexit.unregister(leave_hard)
            atexit.register(leave_hard_last)  # after all others, so it comes before them

    shown._ppwork = True  # type: ignore[attr-defined]
    sys.excepthook = shown
