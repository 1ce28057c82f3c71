"""The processes of a host in miniature: seen from this machine, stopped, let go on, and ended all at once."""

from __future__ import annotations

import contextlib
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

if TYPE_CHECKING:
    from ppwork.faults.hosts import MiniatureHost


def processes(host: MiniatureHost) -> list[psutil.Process]:
    """What runs on a host, but for its first process; nothing once it is off."""
    own = _space(host.pid)
    others = (process for process in psutil.process_iter() if process.pid != host.pid)
    return [process for process in others if own and _space(process.pid) == own]


def process(host: MiniatureHost, pid: int) -> psutil.Process:
    """A process by the pid that it has on its host.

    Raises:
        ProcessLookupError: There is none.
    """
    for found in processes(host):
        with contextlib.suppress(OSError, StopIteration):
            status = Path(f"/proc/{found.pid}/status").read_text().splitlines()
            if int(next(line for line in status if line.startswith("NSpid:")).split()[-1]) == pid:
                return found
    raise ProcessLookupError(f"no process {pid} on {host.name}")


def freeze(host: MiniatureHost) -> None:
    """Stop every process on a host; its network still answers what a kernel answers."""
    stopped: set[psutil.Process] = set()
    while new := set(processes(host)) - stopped:
        for each in new:
            _send(each, signal.SIGSTOP)
        stopped |= new


def thaw(host: MiniatureHost) -> None:
    """Let every process go on."""
    for each in processes(host):
        _send(each, signal.SIGCONT)


def power_off(host: MiniatureHost) -> None:
    """Pull the cable, so that no goodbye gets out, and end all of it at once."""
    host.cut()
    _send(psutil.Process(host.pid), signal.SIGKILL)


def _send(to: psutil.Process, number: int) -> None:
    with contextlib.suppress(psutil.NoSuchProcess):
        to.send_signal(number)


def _space(pid: int) -> str:
    """The name of a process's pid namespace; of one that is gone, nothing."""
    with contextlib.suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return ""
