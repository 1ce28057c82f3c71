"""Busy processes: a machine that has something else to do, to see whether bounds hold there. No torch."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

# Its standard input ends when we do, however that happens: no loop outlives us.
_BUSY = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.buffer.read(), os._exit(0)), daemon=True).start()
while True: pass
"""


@contextlib.contextmanager
def busy(processes: int) -> Iterator[list[int]]:
    """Keep this many processes in an endless loop while the body runs.

    Args:
        processes: How many; each takes a core if there is one.

    Yields:
        Their pids.
    """
    with contextlib.ExitStack() as stack:
        started = [
            stack.enter_context(subprocess.Popen([sys.executable, "-c", _BUSY], stdin=subprocess.PIPE))
            for _ in range(processes)
        ]
        try:
            yield [process.pid for process in started]
        finally:
            for process in started:
                process.kill()
