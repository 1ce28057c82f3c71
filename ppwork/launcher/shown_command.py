"""The command line and environment that others read of this process (``/proc/PID/cmdline``, ``environ``).

A process that was forked and not exec'd shows its parent's. Who looks for ranks (``torchrun_watch``, ``ps``,
``htop``, a test) looks there, so a forked rank puts its own in their place. Linux only; no privilege needed.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

PR_SET_MM = 35
PR_SET_MM_MAP = 14
NO_FILE = 0xFFFFFFFF
HEADROOM = 1 << 16


class _MemoryMap(ctypes.Structure):
    """``struct prctl_mm_map``: all of it is set at once, so all but the last lines repeat what is."""

    _fields_ = (
        *(
            (name, ctypes.c_uint64)
            for name in (
                "start_code", "end_code", "start_data", "end_data", "start_brk", "brk", "start_stack",
                "arg_start", "arg_end", "env_start", "env_end", "auxv",
            )
        ),
        ("auxv_size", ctypes.c_uint32),
        ("exe_fd", ctypes.c_uint32),
    )  # fmt: skip


def show_as(command: Sequence[str], environment: Mapping[str, str]) -> None:
    """Have this process seen with this command line and this environment. It must have one thread.

    Raises:
        OSError: This system cannot do that.
    """
    if sys.platform != "linux":
        raise OSError(f"the command line of a process cannot be changed on {sys.platform}")
    libc = ctypes.CDLL(None, use_errno=True)
    libc.sbrk.restype = libc.malloc.restype = ctypes.c_void_p
    libc.free.argtypes = (ctypes.c_void_p,)
    words = b"".join(os.fsencode(word) + b"\0" for word in command)
    variables = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in environment.items())
    text = ctypes.create_string_buffer(words + variables)
    start = ctypes.addressof(text)
    # Fields of proc(5) by their number; the second, a name in brackets, may hold blanks.
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    memory = _MemoryMap(
        *(int(fields[number - 3]) for number in (26, 27, 45, 46, 47)),
        0,
        int(fields[28 - 3]),
        start,
        start + len(words),
        start + len(words),
        start + len(words) + len(variables),
        0,
        0,
        NO_FILE,
    )
    # The heap's end must not move until the call: what is allocated in between finds room below.
    libc.free(libc.malloc(HEADROOM))
    memory.brk = libc.sbrk(0)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(memory), ctypes.sizeof(memory), 0):
        number = ctypes.get_errno()
        raise OSError(number, f"the command line cannot be changed: {os.strerror(number)}")
    # The kernel reads the text where it is, also while Python clears its modules at the end.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))
