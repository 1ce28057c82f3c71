"""Rules for every process of ours: its lifeline, its imports, and its exit codes.

- It never outlives its launcher. It has two lifelines, and each covers what the other cannot: the launcher
  holds the write end of our standard input, so end-of-file means that the launcher is gone; the parent-death
  signal means that torchrun is gone. Under any other torchrun there is only the signal. Ctrl-C and SIGTERM
  get their default action back: a Python handler would wait for a C++ call on the main thread to end.
- Python's garbage collector skips the objects that imports make, because they stay (``importing``).
- The exit code alone says what ended a rank. If a signal killed the rank, Python reports minus the signal's
  number. If the rank's interpreter no longer ran (its code held the GIL), Python's ``faulthandler`` writes
  the stacks to the log and ends the rank with ``FAILED``.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

LIFELINE_VARIABLE = "PPWORK_LIFELINE"
"""Set by our launcher: standard input is a pipe that ends when the launcher does."""
WARM_VARIABLE = "PPWORK_WARM"
"""How launches start. Unset, empty or ``0``: cold; ``1``: with this process's own warm launcher; a path: with
the warm launcher that listens there."""
TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Set by torchrun for its ranks; the processes that the ranks start inherit it."""
SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
"""Tells Python to import nothing from the working folder: a folder of downloads may have a ``queue.py``."""
LOG_LEVEL_VARIABLE = "PPWORK_LOG_LEVEL"
"""Level of a rank's log, such as ``DEBUG``; unset: ``INFO``."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ORPHAN_S = 1.0
"""Seconds that a process which a rank leaves behind has to exit after SIGTERM, and to die after SIGKILL."""
FAILED = 1
"""A rank: it failed itself, and its record says how."""
SECONDARY = 3
"""A rank: it left because a peer left, or because a peer no longer ran."""
ORPHANED = 71
"""A rank: its launcher went away."""
STUCK = 72
"""A rank: its own code made no progress past the bound, and its watchdog ended it."""
UNWRITABLE = 74
"""A rank: its records could not be written, for example because the disk was full; its log may say more."""
PAST_LIMIT = 124
"""The launcher: it stopped the run, whose time was up."""
TORCHRUN_STOPPED = 125
"""The launcher: it ended the run, because torchrun was stopped (SIGSTOP) and did not go on."""
TORCHRUN_HUNG = 126
"""The launcher: it ended torchrun, which went on after all ranks had ended."""
HOST_LOST = 127
"""The launcher: it ended the run, because a host, or the network between two, fell silent or went away."""
STOPPED = 130
"""The launcher: the run was stopped on request, for example by Ctrl-C."""


_became_ns = 0
"""Time at which this process, if it was forked and then waited, began its program; else 0."""


def flush_files() -> None:
    """Write to disk what this process's open files still hold: an exit without destructors would lose it."""
    for file in gc.get_objects():
        if issubclass(type(file), io.TextIOWrapper | io.BufferedWriter):
            with suppress(OSError, ValueError):  # a full disk; closed, or not a file
                if stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # a pipe could hold this up for ever
                    file.flush()


def became() -> None:
    """Note that this process, which was forked and may have waited, begins its program now."""
    global _became_ns  # noqa: PLW0603  of the process
    _became_ns = time.monotonic_ns()


def began_ns() -> int:
    """Return when this process began its program, on ``time.monotonic_ns``; within 10 ms if not forked."""
    if _became_ns:
        return _became_ns
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:  # not Linux
        return time.monotonic_ns()
    at_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return time.monotonic_ns() - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - at_ns)


def hold_if_asked() -> None:
    """Tie this process to its starter; a process started by hand stays untied and keeps its terminal.

    Our launcher asks for both lifelines. Under any other torchrun there is only the death signal: a killed
    torchrun cannot end its ranks, and they would run on, on this host and on others.
    """
    if os.environ.get(LIFELINE_VARIABLE):
        os.environ.pop(SAFE_PATH_VARIABLE, None)  # meant for this process, not for the program's children
        hold()
    elif os.environ.get(TORCHRUN_VARIABLE):
        die_with_parent()


def hold_torchrun() -> bool:
    """Tie this process to torchrun if torchrun started it, and say whether; a rank's child stays untied."""
    parent = os.getppid()
    if not os.environ.get(TORCHRUN_VARIABLE) or not is_torchrun(command_of(parent)):
        return False
    die_with_parent(parent)
    return True


def is_torchrun(command: Sequence[str]) -> bool:
    """Say whether this command line is torchrun's: the script, ``python -m``, or our own ``python -c``."""
    named = any(Path(part).name == "torchrun" for part in command[:3])
    return named or any("torch.distributed.run" in part for part in command)


def hold(number: int = signal.SIGKILL) -> None:
    """Tie this process to its parent and to the launcher's pipe; a rank calls this first.

    Args:
        number: Signal that the kernel sends when the parent is gone.
    """
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    die_with_parent(number=number)
    if _input_can_end():
        threading.Thread(target=_leave_at_end_of_input, name="lifeline", daemon=True).start()


def _input_can_end() -> bool:
    """Say whether standard input is a lifeline; batch systems give /dev/null, which is at its end at once."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:  # closed, which counts as an end
        return True
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def hold_agent() -> None:
    """Tie torchrun to the launcher.

    If the kernel killed torchrun with its launcher, the ranks, which are tied to torchrun, would die at once,
    before anything had ended the children of their stages. So the kernel sends SIGTERM instead.

    torchrun also becomes the parent of the children that dead ranks leave, and ends all of them. Nothing else
    would find a child that has its own session and environment.
    """
    hold(signal.SIGTERM)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        atexit.register(_end_children)


def die_with_parent(parent: int | None = None, number: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when the thread that started it ends (Linux).

    Args:
        parent: The pid that must still be our parent's; ``None`` takes the current parent's.
        number: The signal.
    """
    parent = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        # The parent may have died before the line above took effect.
        if os.getppid() != parent:
            os._exit(ORPHANED)


def held(code: str, *, tie: Callable[[], None] = hold) -> list[str]:
    """Return the command of a Python process that ties itself to this process before it runs ``code``.

    Args:
        code: Statements, each on its own line.
        tie: ``hold`` or ``hold_agent``, if the standard input is a pipe that ends with us
            (``torchrun.running``); with ``die_with_parent`` only the kernel ties the process to its parent.
    """
    return [sys.executable, "-P", "-c", f"from ppwork import process; process.{tie.__name__}()\n{code}"]


def _leave_at_end_of_input() -> None:
    try:
        with suppress(OSError):  # a closed descriptor is an end of file too
            while os.read(0, 4096):
                pass
        _kill_a_stopped_parent()
        # torchrun starts each rank as the leader of a process group, and the processes that its program
        # starts are in this group. The rank ends the whole group. torchrun ends the groups of its children,
        # the ranks, since its own death would end the ranks before they can.
        for child in _children():
            with suppress(OSError):  # the child is gone, or another user's
                os.killpg(child, signal.SIGKILL)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    finally:  # whatever went wrong with the others
        os._exit(ORPHANED)


def _kill_a_stopped_parent() -> None:
    """Kill our torchrun if it is stopped (SIGSTOP): it cannot notice that its launcher is gone.

    A stop that is still on its way is no state yet, and torchrun would stand for good: SIGCONT drops it.
    """
    parent = os.getppid()
    with suppress(OSError):
        state = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[0]
        if parent > 1 and os.environ.get(TORCHRUN_VARIABLE):
            os.kill(parent, signal.SIGKILL if state == "T" else signal.SIGCONT)


def _end_children() -> None:
    """Ask all children to leave, and kill the rest; when a child dies, its own children become ours."""
    asked: set[int] = set()
    start = time.monotonic()
    while children := _children():
        waited_s = time.monotonic() - start
        if waited_s >= 2 * ORPHAN_S:
            return
        number = signal.SIGTERM if waited_s < ORPHAN_S else signal.SIGKILL
        for child in children:
            with suppress(OSError):  # the child is gone, or another user's
                if number == signal.SIGKILL or child not in asked:
                    os.kill(child, number)
        asked.update(children)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def command_of(pid: int) -> list[str]:
    """Return a process's command line; empty if the process is gone or this is not Linux."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    return []


def _children() -> list[int]:
    """Return the pids of our children; empty if this is not Linux."""
    children: list[int] = []
    for of_thread in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended, and its children now belong to another thread
            children += map(int, of_thread.read_text().split())
    return children


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage inside, and exempt all objects that exist at the end from later collections.

    torch makes some 165,000 objects. Collections during the import, and full collections at the exit of the
    process, visit each of them and free none. That took a third of a rank's time outside its work. A full
    collection in mid-run pauses the rank for over 100 ms, longer than most chunks take. Objects are still
    freed when nothing refers to them. Only cycles made inside, or before, stay for good.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
