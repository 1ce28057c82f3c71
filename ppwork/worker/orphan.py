"""A rank whose torchrun dies before the rank has tied itself to it: importing torch takes seconds.

Nothing would end this rank, and it would wait for the other ranks, which have no torchrun either.
"""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from ppwork.process import ORPHANED, TORCHRUN_VARIABLE, hold_torchrun


def die_with_torchrun() -> None:
    """Tie this process to the torchrun that started it, if one did; leave at once if torchrun is gone."""
    if not hold_torchrun() and os.environ.get(TORCHRUN_VARIABLE) and _is_orphan(os.getppid()):
        with suppress(OSError):
            os.write(2, b"ppwork: torchrun is gone, and this rank with it\n")
        os._exit(ORPHANED)


def _is_orphan(parent: int) -> bool:
    """Say whether torchrun, whose ranks lead sessions, is gone; in doubt say no (Linux).

    Any other parent that starts such ranks is also a Python program, or was started by torchrun.
    """
    if sys.platform != "linux" or os.getsid(0) != os.getpid():
        return False
    try:
        program = Path(f"/proc/{parent}/exe").readlink().name
        environment = Path(f"/proc/{parent}/environ").read_bytes()
    except OSError:  # the parent is another user's, such as init, or is gone
        return parent == 1 or os.getppid() != parent
    return "python" not in program and TORCHRUN_VARIABLE.encode() not in environment
