"""Every process of ours: its lifeline, its imports, and the codes that it leaves with.

- It never outlives its launcher. It has two lifelines, and each covers what the other cannot: the launcher
  keeps the write end of our standard input, so end-of-file means that it is gone; the parent-death signal
  means that torchrun is gone. Under a torchrun that is not ours there is only the second. Ctrl-C and SIGTERM
  get their default action back: a Python handler would wait for a C++ call on the main thread to end.
- Python's garbage collector is kept away from what is imported once and stays (``importing``).
- What ended a rank can be read from its exit code alone. A rank that was killed has minus the signal's
  number, which is Python's way to say so. A rank whose interpreter no longer ran (its code held the GIL)
  leaves with ``FAILED`` and has its stacks in its log: Python's ``faulthandler`` ends it and sets the code.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
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
"""How launches start. Unset, empty or ``0``: cold; ``1``: a warm launcher of this process's own; a path: the
warm launcher that listens there."""
TORCHRUN_VARIABLE = "TORCHELASTIC_RUN_ID"
"""Set by torchrun for its ranks; the processes that they start have it, too."""
SAFE_PATH_VARIABLE = "PYTHONSAFEPATH"
"""Tells Python to import nothing from the working folder: one with downloads may have a ``queue.py``."""
LOG_LEVEL_VARIABLE = "PPWORK_LOG_LEVEL"
"""Level of a rank's log, such as ``DEBUG``; unset: ``INFO``."""
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
ORPHAN_S = 1.0
"""A process that a rank's program has left behind gets so many seconds to leave, and then as many to die."""
FAILED = 1
"""A rank: it failed itself, and its record says how."""
SECONDARY = 3
"""A rank: it left because a peer did, or because a peer no longer ran."""
ORPHANED = 71
"""A rank: its launcher went away."""
STUCK = 72
"""A rank: its own code made no progress past the bound, and its watchdog ended it."""
UNWRITABLE = 74
"""A rank: its records could not be written, for example because the disk was full; its log may say more."""
PAST_LIMIT = 124
"""The launcher: the run's time was up and it was stopped."""
TORCHRUN_STOPPED = 125
"""The launcher: torchrun was stopped (SIGSTOP) and did not go on, and the run was ended."""
TORCHRUN_HUNG = 126
"""The launcher: all ranks had ended and torchrun had not, and it was ended."""
HOST_LOST = 127
"""The launcher: a host, or the network between two, fell silent or went away, and the run was ended."""
STOPPED = 130
"""The launcher: the run was stopped on request, as by Ctrl-C."""


_became_ns = 0
"""Time at which a process that was forked and waited became this program."""


def became() -> None:
    """Say that this process, which was forked and may have waited, begins its program now."""
    global _became_ns  # noqa: PLW0603  of the process
    _became_ns = time.monotonic_ns()


def began_ns() -> int:
    """Return when this process began its program, in ``time.monotonic_ns``; to 10 ms if it was not forked."""
    if _became_ns:
        return _became_ns
    try:
        ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:  # no Linux
        return time.monotonic_ns()
    at_ns = ticks * 1_000_000_000 // os.sysconf("SC_CLK_TCK")
    return time.monotonic_ns() - (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - at_ns)


def hold_if_asked() -> None:
    """Tie this process to whoever started it; a process started by hand stays untied and keeps its terminal.

    Our launcher asks for both lifelines. Under any other torchrun it is the death signal: a torchrun that is
    killed cannot end its ranks, and they would run on, on this host and on others.
    """
    if os.environ.get(LIFELINE_VARIABLE):
        os.environ.pop(SAFE_PATH_VARIABLE, None)  # it was for us, and not for the program's children
        hold()
    elif os.environ.get(TORCHRUN_VARIABLE):
        die_with_parent()


def hold_torchrun() -> bool:
    """Tie this process to torchrun if torchrun started it, and say whether; a rank's child stays untied."""
    parent = os.getppid()
    if not os.environ.get(TORCHRUN_VARIABLE) or not is_torchrun(_command(parent)):
        return False
    die_with_parent(parent)
    return True


def is_torchrun(command: Sequence[str]) -> bool:
    """Say whether a process with this command line is torchrun: the script, ``-m``, or our few lines."""
    named = any(Path(part).name == "torchrun" for part in command[:3])
    return named or any("torch.distributed.run" in part for part in command)


def hold(number: int = signal.SIGKILL) -> None:
    """Tie this process to its parent and to the launcher's pipe; call first thing in a rank.

    Args:
        number: What the kernel sends when the parent is gone.
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
    except OSError:  # closed, which is an end
        return True
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def hold_agent() -> None:
    """Tie torchrun to the launcher.

    If the kernel killed torchrun with its launcher, the ranks, which are tied to torchrun, would die at once,
    before anybody had ended the children of their stages. So the kernel asks politely, by SIGTERM.

    torchrun also becomes the parent of the children that dead ranks leave, and ends all of them. Nothing else
    would find a child that has a session and an environment of its own.
    """
    hold(signal.SIGTERM)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
        atexit.register(_end_children)


def die_with_parent(parent: int | None = None, number: int = signal.SIGKILL) -> None:
    """Have the kernel signal this process when the thread that started it ends (Linux).

    Args:
        parent: The pid that must still be our parent; ``None`` takes the current one.
        number: The signal.
    """
    parent = os.getppid() if parent is None else parent
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
        # The parent may have died before the line above took effect.
        if os.getppid() != parent:
            os._exit(ORPHANED)


def held(code: str, *, tie: Callable[[], None] = hold) -> list[str]:
    """Return the command of a Python process that is tied to us before it runs ``code``.

    Args:
        code: Statements, each on a line of its own.
        tie: ``hold``, ``hold_agent``: its standard input is a pipe that ends with us (``torchrun.running``);
            ``die_with_parent``: only the kernel ties it to its parent.
    """
    return [sys.executable, "-P", "-c", f"from ppwork import process; process.{tie.__name__}()\n{code}"]


def _leave_at_end_of_input() -> None:
    try:
        with suppress(OSError):  # a closed descriptor is an end of file too
            while os.read(0, 4096):
                pass
        _kill_a_stopped_parent()
        # A rank leads a process group (torchrun starts it so), and what its program started is in it. The
        # rank ends all of it; torchrun does so for ranks that its own death would end before they can.
        for child in _children():
            with suppress(OSError):  # it is gone, or another user's
                os.killpg(child, signal.SIGKILL)
        if os.getpgrp() == os.getpid():
            os.killpg(0, signal.SIGKILL)
    finally:  # whatever went wrong with the others
        os._exit(ORPHANED)


def _kill_a_stopped_parent() -> None:
    """End a torchrun that is stopped (SIGSTOP): it cannot see that its launcher is gone."""
    parent = os.getppid()
    with suppress(OSError):
        state = Path(f"/proc/{parent}/stat").read_text().rpartition(")")[2].split()[0]
        if state == "T" and parent > 1 and os.environ.get(TORCHRUN_VARIABLE):
            os.kill(parent, signal.SIGKILL)


def _end_children() -> None:
    """Ask all children to leave, and kill those that do not; their own children become ours meanwhile."""
    asked: set[int] = set()
    start = time.monotonic()
    while children := _children():
        waited_s = time.monotonic() - start
        if waited_s >= 2 * ORPHAN_S:
            return
        number = signal.SIGTERM if waited_s < ORPHAN_S else signal.SIGKILL
        for child in children:
            with suppress(OSError):  # it is gone, or another user's
                if number == signal.SIGKILL or child not in asked:
                    os.kill(child, number)
        asked.update(children)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _command(pid: int) -> list[str]:
    """Return a process's command line, empty if it is gone or this is no Linux."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace").split("\0")
    return []


def _children() -> list[int]:
    """Return the pids of our children; on Linux, elsewhere none."""
    children: list[int] = []
    for of_thread in Path("/proc/self/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended, and its children are another one's
            children += map(int, of_thread.read_text().split())
    return children


@contextmanager
def importing() -> Iterator[None]:
    """Collect no garbage inside, and never look again at the objects that are there at the end.

    torch is some 165,000 objects. Collections while they are made, and the full ones at the exit of the
    process, look at each of them and free none. That took a third of a rank's time outside its work. In
    mid-run a full collection is a pause of more than 100 ms, longer than most chunks. Objects are still freed
    when nobody refers to them. Only cycles made inside, or before, stay for good.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()
