"""A rank whose torchrun is gone before the rank could tie itself to it: imports of torch take seconds.

Nothing would end it, and it would wait for the others of its job, which have no torchrun either.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from ppwork.process import ORPHANED, TORCHRUN_VARIABLE, hold_torchrun


def die_with_torchrun() -> None:
    """Tie this process to the torchrun that started it, if one did; leave at once if that is gone already."""
    if not hold_torchrun() and os.environ.get(TORCHRUN_VARIABLE) and _is_orphan(os.getppid()):
        with suppress(OSError):
            os.write(2, b"ppwork: torchrun is gone, and this rank with it\n")
        os._exit(ORPHANED)


def _is_orphan(parent: int) -> bool:
    """Say whether torchrun is gone, whose ranks lead sessions; in doubt it is not (Linux).

    Whatever else starts such ranks is a program of Python's too, or one that torchrun has started.
    """
    if sys.platform != "linux" or os.getsid(0) != os.getpid():
        return False
    try:
        program = Path(f"/proc/{parent}/exe").readlink().name
        environment = Path(f"/proc/{parent}/environ").read_bytes()
    except OSError:  # it is another user's, such as init, or gone
        return parent == 1 or os.getppid() != parent
    return "python" not in program and TORCHRUN_VARIABLE.encode() not in environment
