"""Ranks never outlive whoever started them.

Two lines, as each covers what the other cannot: the launcher keeps the write end of our standard input,
so end-of-file means that it is gone; the parent-death signal means that torchrun is gone. Ctrl-C and SIGTERM
get their default action back: a Python handler would wait for a C++ call on the main thread to end.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading

from ppwork.environment import LIFELINE_VARIABLE
from ppwork.exit_codes import ORPHANED

PR_SET_PDEATHSIG = 1


def hold_if_asked() -> None:
    """Hold the lines if our launcher started this process; one started by hand keeps its terminal."""
    if os.environ.get(LIFELINE_VARIABLE):
        hold()


def hold(parent: int | None = None) -> None:
    """Tie this process to its parent and to the launcher's pipe; call first thing in a rank.

    Args:
        parent: The pid that must still be our parent; ``None`` takes the current one.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        # The parent may have died before the line above took effect.
        if os.getppid() != parent:
            os._exit(ORPHANED)
    threading.Thread(target=_leave_at_end_of_input, name="lifeline", daemon=True).start()


def _leave_at_end_of_input() -> None:
    try:
        while os.read(0, 4096):
            pass
    except OSError:
        pass  # a closed descriptor is an end of file too
    os._exit(ORPHANED)
