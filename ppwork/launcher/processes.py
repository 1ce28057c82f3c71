"""Ends processes: first politely, then hard, by recorded process and never by name; and queries them.

A process is its pid and its start time, so a process that got the same pid later is never hit. No torch here.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

import psutil

from ppwork.process import ORPHAN_S
from ppwork.protocol.plan import SECRET_VARIABLE, STORE_VARIABLE

POLL_S = 0.05
"""Seconds between two looks at a process."""
KILL_S = 3.0
"""Seconds that we wait for a killed process: the kernel takes milliseconds, a loaded machine longer."""


def end(processes: Sequence[psutil.Process], polite_s: float) -> list[psutil.Process]:
    """Wait until processes that were asked to leave are gone, and kill the rest.

    This polls whether they live and does not wait for them: the exit code of our own child stays available to
    the code that started it.

    Args:
        processes: Recorded before the first of them left: an orphan's parent cannot be asked any more.
        polite_s: Seconds that they get; 0 kills at once.

    Returns:
        The processes that had to be killed.

    Blocks:
        At most ``polite_s`` and ``KILL_S``.
    """
    alive = list(processes)
    try:
        alive = _alive_after(alive, polite_s)
    finally:  # also after an impatient Ctrl-C
        for process in alive:
            with contextlib.suppress(psutil.Error):  # it is gone, or another user's; go on with the others
                process.kill()
        _alive_after(alive, KILL_S)
    return alive


def family_of(pid: int) -> list[psutil.Process]:
    """Return a process and all below it, recorded before any of them dies; empty if the process is gone."""
    try:
        process = psutil.Process(pid)
    except psutil.Error:
        return []
    return with_children(process)


def with_children(process: psutil.Process) -> list[psutil.Process]:
    """Return a process and all below it; if it is gone, only itself."""
    family = [process]
    with contextlib.suppress(psutil.Error):
        family += process.children(recursive=True)
    return family


def _alive_after(processes: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    # Not psutil's own wait: it would take a child's exit code from the code that started it.
    deadline = time.monotonic() + within_s
    while (alive := [process for process in processes if is_alive(process)]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return alive


def is_alive(process: psutil.Process) -> bool:
    """Say whether a process exists and is no zombie."""
    return process.is_running() and state_of(process) not in ("", psutil.STATUS_ZOMBIE)


def end_orphans(mark: Path, family: Iterable[psutil.Process] = ()) -> None:
    """End processes that programs of a run's ranks started and left behind.

    Args:
        mark: The run's store, or the file of its secret: a process has one of them in its environment unless
            its program removed it.
        family: Processes that were seen below torchrun.

    Blocks:
        Only if there are such processes; at most ``ORPHAN_S`` and ``KILL_S``.
    """
    orphans = [process for process in psutil.process_iter() if str(mark) in _marks_of(process)]
    orphans += [process for process in family if process not in orphans and is_alive(process)]
    for process in orphans:
        with contextlib.suppress(psutil.Error):
            process.terminate()
    end(orphans, ORPHAN_S)


def _marks_of(process: psutil.Process) -> list[str]:
    environment = environment_of(process)
    return [environment.get(name, "") for name in (STORE_VARIABLE, SECRET_VARIABLE)]


def environment_of(process: psutil.Process) -> dict[str, str]:
    """Return the environment of a process; empty if it is gone or is not ours."""
    try:
        environment: dict[str, str] = process.environ()
    except (psutil.Error, OSError):
        return {}
    return environment


def state_of(process: psutil.Process) -> str:
    """Return the state of a process as psutil names it; empty if it is gone or may not be read."""
    try:
        return str(process.status())
    except psutil.Error:
        return ""
