"""The identity of a process: its pid, its start, and where both count, because pids are reused.

The start is in the kernel's ticks after boot. A time of day would not do: somebody may set the host's clock
while the process runs.
"""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import msgspec
import psutil

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
START_FIELD = 22
"""Field of ``/proc/PID/stat``, in the numbering of proc(5)."""


class Identity(msgspec.Struct, frozen=True):
    """A process that cannot be mistaken for another."""

    pid: int
    started: int
    space: str
    """As ``pid_space``: a pid means nothing in another container or after another boot."""

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return the identity of the process that has this pid now.

        Raises:
            psutil.NoSuchProcess: No process has it.
        """
        return cls(pid, _started(pid), pid_space())

    @property
    def here(self) -> bool:
        """Whether the pid counts where this process runs; else nothing can be said of that process."""
        return self.space == pid_space()

    def process(self) -> psutil.Process | None:
        """Return the process, or ``None`` if it is gone or not ``here``.

        A zombie, whose parent has not collected its exit code, counts as gone.
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
    """Return where the pids that this process sees are valid: a boot of a kernel, and its pid namespace."""
    try:
        return f"{BOOT_ID.read_text().strip()} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:  # not Linux
        return platform.node()


def _started(pid: int) -> int:
    if sys.platform != "linux":
        return round(psutil.Process(pid).create_time())
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError as error:
        raise psutil.NoSuchProcess(pid) from error
    # The second field, a name in brackets, may contain blanks and brackets.
    return int(stat.rpartition(b")")[2].split()[START_FIELD - 3])
