"""The identity of a process: its pid and its start time, because a pid alone is used again."""

from __future__ import annotations

import msgspec
import psutil

SAME_START_S = 1.0
"""The start time of a process moves a little when its host's clock is set, as psutil adds it to boot time."""


class Identity(msgspec.Struct, frozen=True):
    """A process that cannot be taken for another one."""

    pid: int
    started: float
    """Start time as ``psutil.Process.create_time`` gives it."""

    @classmethod
    def of(cls, pid: int) -> Identity:
        """Return who has this pid now.

        Raises:
            psutil.NoSuchProcess: Nobody has.
        """
        return cls(pid, psutil.Process(pid).create_time())

    def process(self) -> psutil.Process | None:
        """Return the process, or ``None`` if it is gone.

        A zombie, whose parent has not asked for its exit code yet, is gone.
        """
        try:
            process = psutil.Process(self.pid)
            same = abs(process.create_time() - self.started) < SAME_START_S
            return process if same and process.status() != psutil.STATUS_ZOMBIE else None
        except psutil.Error:
            return None
