"""The command line and environment that others read of this process (``/proc/PID/cmdline``, ``environ``).

A process that was forked without exec shows its parent's. Programs that look for ranks (``torchrun_watch``,
``ps``, ``htop``, a test) read them, so a forked rank replaces them by its own. Linux only; no privilege
needed.
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
    """``struct prctl_mm_map``: all fields are set at once, so all but the last few repeat current values."""

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
    """Show this process with this command line and this environment. It must have only one thread.

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
    # Fields of proc(5) by number; the second, a name in brackets, may contain blanks.
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
    # The end of the heap must not move until the call: allocations in between find room below it.
    libc.free(libc.malloc(HEADROOM))
    memory.brk = libc.sbrk(0)
    if libc.prctl(PR_SET_MM, PR_SET_MM_MAP, ctypes.byref(memory), ctypes.sizeof(memory), 0):
        number = ctypes.get_errno()
        raise OSError(number, f"the command line cannot be changed: {os.strerror(number)}")
    # The kernel reads the text in place, even while Python clears its modules at exit.
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(text))
