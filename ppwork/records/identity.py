"""The identity of a process: its pid, its start, and where both count, because a pid alone is used again.

The start is in the kernel's ticks after boot. A time of day would not do: the host's clock may be set while
the process runs.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import msgspec
import psutil

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
START_FIELD = 22
"""Of ``/proc/PID/stat``, as proc(5) counts."""


class Identity(msgspec.Struct, frozen=True):
    """A process that cannot be taken for another one."""

    pid: int
    started: int
    space: str
    """As ``pid_space``: a pid says nothing in another container or after another boot."""

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return who has this pid now.

        Raises:
            psutil.NoSuchProcess: Nobody has.
        """
        return cls(pid, _started(pid), pid_space())

    @property
    def here(self) -> bool:
        """Whether we count pids as it does; of others nothing can be said."""
        return self.space == pid_space()

    def process(self) -> psutil.Process | None:
        """Return the process, or ``None`` if it is gone or not ``here``.

        A zombie, whose parent has not asked for its exit code yet, is gone.
        """
        if not self.here:
            return None
        try:
            process = psutil.Process(self.pid)
            same = _started(self.pid) == self.started
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None


def pid_space() -> str:
    """Return where the pids count that this process sees: a boot of a kernel, and a pid namespace of it."""
    try:
        return f"{BOOT_ID.read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # no Linux
        return platform.node()


def _started(pid: int) -> int:
    if sys.platform != "linux":
        return round(psutil.Process(pid).create_time())
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError as error:
        raise psutil.NoSuchProcess(pid) from error
    # The second field, a name in brackets, may hold blanks and brackets.
    return int(stat.rpartition(b")")[2].split()[START_FIELD - 3])
