"""The list of our own runs on this machine: which process runs where, by pid and start time. No torch.

One small file for each run, in a folder that only this user can write. A pid alone proves nothing, because
pids are reused: a process is shown or ended only if its start time is the recorded one.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec
import psutil

from ppwork.errors import UnavailableError
from ppwork.launcher.processes import end, environment_of
from ppwork.launcher.torchrun_watch import ranks_of
from ppwork.plan import Plan
from ppwork.process import STOPPED
from ppwork.records.files import read_json, write_whole
from ppwork.records.identity import Identity
from ppwork.records.pulse import PULSE
from ppwork.records.run import LaunchEnd

STOP_POLITE_S = 4.0
"""Seconds that torchrun gets after SIGTERM: for its clean-up, and for our launcher to end a stopped rank."""

SCRATCH, OWNER = "scratch-", "owner.json"
"""Prefix of a scratch folder's name, and the file in the folder that names its owner."""

ENDED = "The run was ended by `ppwork stop`."
LEFT_OVER = "what there is of its timeline: `ppwork timeline` with that folder"


class RunEntry(msgspec.Struct, frozen=True, kw_only=True):
    """One run that was started on this machine by this user."""

    run_dir: str
    launcher: Identity
    """The launcher: a shell command, a script, or a notebook's kernel."""
    agent: Identity
    """torchrun, the parent of the ranks; in a run over hosts, the process that leads to the first host."""
    at: float
    """``time.time`` of the start."""
    waits: str = ""
    """What it does before its ranks start, such as "waits in the queue"; empty once they were started."""

    @property
    def own_torchrun(self) -> bool:
        """Whether the user's own torchrun started it: it is on no list."""
        return self.launcher == self.agent


def registry() -> Path:
    """Return the folder of the list; make it if it does not exist.

    Raises:
        UnavailableError: The folder cannot be made, or another user could write into it.
    """
    runtime = Path(os.environ.get("XDG_RUNTIME_DIR") or "/nonexistent")
    folder = None
    try:
        if os.access(runtime, os.W_OK | os.X_OK):
            folder = runtime / "ppwork"
        else:  # if every disk is full, Python finds no temporary folder
            folder = Path(tempfile.gettempdir()) / f"ppwork-runs-{os.getuid()}"
        folder.mkdir(mode=0o700, exist_ok=True)
        state = folder.lstat()
    except OSError as error:
        raise UnavailableError(
            f"The list of runs{f' {folder}' if folder else ''} cannot be kept: {error.strerror}.",
            check_first="TMPDIR or XDG_RUNTIME_DIR: set one to a folder of yours with free space",
        ) from error
    # In a shared /tmp another user may have made this name before us, even as a link.
    if not stat.S_ISDIR(state.st_mode) or state.st_uid != os.getuid() or state.st_mode & 0o077:
        raise UnavailableError(
            f"The folder {folder} of the list of runs is not private.",
            check_first=f"who made it? `ls -ld {folder}`; remove it, or set TMPDIR to a folder of yours",
        )
    return folder


@contextlib.contextmanager
def scratch_folder() -> Iterator[Path]:
    """Make a private folder that is removed at the end of the body; also remove folders of dead owners.

    Raises:
        UnavailableError: The list is not private, or the folder cannot be made in it.
    """
    folder = registry()
    for owner in folder.glob(f"{SCRATCH}*/{OWNER}"):
        identity = read_json(owner, Identity)
        if identity is not None and identity.here and identity.process() is None:
            shutil.rmtree(owner.parent, ignore_errors=True)
    with contextlib.ExitStack() as stack:
        try:
            scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=folder))
            stack.callback(shutil.rmtree, scratch, ignore_errors=True)
            write_whole(scratch / OWNER, msgspec.json.encode(Identity.of(os.getpid())))
        except OSError as error:
            raise _unwritable(folder, error) from error
        yield scratch


def _unwritable(folder: Path, error: OSError) -> UnavailableError:
    return UnavailableError(
        f"The list of runs {folder} cannot be written: {error.strerror}.",
        check_first=f"free space on {folder}",
    )


@contextlib.contextmanager
def registered(run_dir: Path, agent_pid: int, waits: str = "") -> Iterator[None]:
    """Keep a run of this process on the list while the body runs; not if its agent is already gone.

    Args:
        run_dir: The run's folder.
        agent_pid: The process that ``stop`` ends.
        waits: As in ``RunEntry``.

    Raises:
        UnavailableError: The list is not private, or cannot be written.
    """
    folder = registry()
    launcher, agent = Identity.of(os.getpid()), None
    with contextlib.suppress(psutil.NoSuchProcess):
        agent = Identity.of(agent_pid)
    if agent is None:
        yield  # the body finds out how it ended
        return
    run = RunEntry(
        run_dir=str(run_dir.absolute()), launcher=launcher, agent=agent, at=time.time(), waits=waits
    )
    # Another container that shares this folder may have the same pids.
    path = folder / f"{os.getpid()}-{agent_pid}-{secrets.token_hex(4)}.json"
    try:
        write_whole(path, msgspec.json.encode(run))
    except OSError as error:
        raise _unwritable(folder, error) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def own_runs() -> list[RunEntry]:
    """Return the runs that go on here, oldest first; drop entries whose torchrun is gone.

    Raises:
        UnavailableError: The list is not private.
    """
    going = []
    for path in registry().glob("*.json"):
        try:
            run = msgspec.json.decode(path.read_bytes(), type=RunEntry)
        except FileNotFoundError:
            continue  # it has just ended
        except msgspec.MsgspecError:
            path.unlink(missing_ok=True)
            continue
        if not run.agent.here:
            continue  # it is another container's that shares this folder, and may go on
        # Its ranks have a death signal to torchrun, so they are gone with it.
        if run.agent.process() is None:
            path.unlink(missing_ok=True)
        else:
            going.append(run)
    return sorted(going, key=lambda run: run.at)


def runs_of_own_torchruns(listed: Sequence[str]) -> list[RunEntry]:
    """Return the runs that ranks of the user's own torchruns keep a pulse of on this machine, oldest first.

    Args:
        listed: Folders of runs that are known; what lies in them is left out.
    """
    parents: dict[Path, psutil.Process] = {}
    for process in psutil.process_iter():
        if "RANK" not in environment_of(process):
            continue
        with contextlib.suppress(psutil.Error, OSError, AttributeError):  # it is gone; or this is no Linux
            mapped = [Path(mapping.path) for mapping in process.memory_maps()]
            folders = [path.parent for path in mapped if PULSE.fullmatch(path.name)]
            if folders and (parent := process.parent()) is not None:
                parents |= dict.fromkeys(folders, parent)
    runs = []
    for folder, parent in parents.items():
        if not any(folder.is_relative_to(Path(known).resolve()) for known in listed):
            with contextlib.suppress(psutil.Error, OSError):
                agent, at = Identity.of(parent.pid), (folder / Plan.FILE_NAME).stat().st_mtime
                runs.append(RunEntry(run_dir=str(folder), launcher=agent, agent=agent, at=at))
    return sorted(runs, key=lambda run: run.at)


def stop(run: RunEntry) -> bool:
    """End a run by ending its torchrun; its launcher, even a notebook's kernel, lives on and is told.

    The run's folder records that the run was ended, even if its launcher is dead.

    Returns:
        Whether torchrun or a rank had to be killed.

    Blocks:
        Until torchrun and its ranks are gone; a few seconds at most.
    """
    agent = run.agent.process()
    if agent is None:
        return False
    run_dir = Path(run.run_dir)
    if (run_dir / Plan.FILE_NAME).exists():
        with contextlib.suppress(OSError):
            LaunchEnd(exit_code=STOPPED, what=ENDED, check_first=LEFT_OVER).save(run_dir)
    family = [agent, *ranks_of(agent)]
    with contextlib.suppress(psutil.NoSuchProcess):
        agent.terminate()
    return bool(end(family, STOP_POLITE_S))
