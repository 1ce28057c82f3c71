"""The list of our own runs on this machine: who runs where, by pid and start time. No torch.

One small file for each run, in a folder that only this user can write. A pid alone says nothing, as pids are
used again: nothing is shown or ended whose start time is not the recorded one.
"""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import psutil

from ppwork.agent_watch import ranks_of
from ppwork.errors import PlanError
from ppwork.failure import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

POLITE_S = 4.0
"""How long torchrun gets after SIGTERM: its own clean-up, and our launcher's for a rank that is stopped."""
KILL_S = 3.0
POLL_S = 0.05


class Identity(msgspec.Struct, frozen=True):
    """A process that cannot be taken for another one."""

    pid: int
    started: float
    """Start time as ``psutil.Process.create_time`` gives it."""

    def process(self) -> psutil.Process | None:
        """Return the process, or ``None`` if it is gone (a zombie is)."""
        try:
            found = psutil.Process(self.pid)
            same = found.create_time() == self.started and found.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return None
        return found if same else None


def identity(pid: int) -> Identity:
    """Return who has this pid now.

    Raises:
        psutil.NoSuchProcess: Nobody.
    """
    return Identity(pid, psutil.Process(pid).create_time())


class OwnRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run that was started on this machine by this user."""

    run_dir: str
    launcher: Identity
    """A shell command, a script, or a notebook's kernel."""
    agent: Identity
    """torchrun, the parent of the ranks."""
    at: float
    """``time.time`` of the start."""


def registry() -> Path:
    """Return the folder of the list, made if it is not there.

    Raises:
        PlanError: It cannot be made, or somebody else could write into it.
    """
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    if os.access(runtime, os.W_OK | os.X_OK):
        folder = runtime / "ppwork"
    else:
        folder = Path(tempfile.gettempdir()) / f"ppwork-runs-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
    except OSError as error:
        raise PlanError(
            f"The list of runs {folder} cannot be kept: {error.strerror}.",
            check_first="TMPDIR or XDG_RUNTIME_DIR: set one to a folder of yours with free space",
        ) from error
    # In a shared /tmp anybody may have made this name before us, as a link, too.
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PlanError(
            f"The folder {folder} of the list of runs is not private.",
            check_first=f"who made it? `ls -ld {folder}`; remove it, or set TMPDIR to a folder of yours",
        )
    return folder


@contextlib.contextmanager
def listed(run_dir: Path, agent_pid: int) -> Iterator[None]:
    """Keep a run of this process on the list while the body runs.

    Raises:
        PlanError: The list is not private, or cannot be written.
        psutil.NoSuchProcess: torchrun is gone already.
    """
    folder = registry()
    run = OwnRun(
        run_dir=str(Path(run_dir).absolute()),
        launcher=identity(os.getpid()),
        agent=identity(agent_pid),
        at=time.time(),
    )
    path = folder / f"{os.getpid()}-{agent_pid}.json"
    try:
        write_whole(path, msgspec.json.encode(run))
    except OSError as error:
        raise PlanError(
            f"The list of runs {folder} cannot be written: {error.strerror}.",
            check_first=f"free space on {folder}",
        ) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def own_runs() -> list[OwnRun]:
    """Return the runs that are going, oldest first; entries whose torchrun is gone are dropped from the list.

    Raises:
        PlanError: The list is not private.
    """
    going = []
    for path in registry().glob("*.json"):
        try:
            run = msgspec.json.decode(path.read_bytes(), type=OwnRun)
        except FileNotFoundError:
            continue  # it has just ended
        except msgspec.MsgspecError:
            path.unlink(missing_ok=True)
            continue
        # Its ranks hold a death signal to torchrun, so they are gone with it.
        if run.agent.process() is None:
            path.unlink(missing_ok=True)
        else:
            going.append(run)
    return sorted(going, key=lambda run: run.at)


def stop(run: OwnRun) -> bool:
    """End a run by ending its torchrun; who launched it, be it a notebook's kernel, lives on and is told.

    Returns:
        Whether torchrun or a rank had to be killed.

    Blocks:
        Until torchrun and its ranks are gone; a few seconds at most.
    """
    agent = run.agent.process()
    if agent is None:
        return False
    family = [agent, *ranks_of(agent)]
    with contextlib.suppress(psutil.NoSuchProcess):
        agent.terminate()
    alive = _alive_after(family, POLITE_S)
    for process in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    _alive_after(alive, KILL_S)
    return bool(alive)


def _alive_after(family: list[psutil.Process], within_s: float) -> list[psutil.Process]:
    # Not psutil's own wait: where torchrun is our child, that would take its exit code from `launch`.
    deadline = time.monotonic() + within_s
    while (alive := [one for one in family if _is_alive(one)]) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return alive


def _is_alive(process: psutil.Process) -> bool:
    try:
        return process.is_running() and bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
