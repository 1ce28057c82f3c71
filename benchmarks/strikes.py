"""What can be done to a run from outside at a random moment, and to whom: for ``random_kills``.

A signal to a rank, torchrun or the launcher; a pause of all of them at once; the run folder moved or removed
in mid-run; the scratch folder removed, in which torchrun and the ranks meet. All processes are found by the
run folder in their command lines and ended by what was recorded, never by name.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

import psutil

from ppwork.launcher.registry import OWNER, SCRATCH, registry
from ppwork.plan import Plan
from ppwork.process import is_torchrun
from ppwork.records.spans import read_entries

MESH_SIZES = (2, 3)
CHUNKS = 100
CHUNK_S = 0.04
"""About the period."""
STARTING = 1 / 3
"""Share of the draws that fall into start-up."""
ENDING, END_S = 0.1, 0.5
"""Draws for the end, as a share of those for the chunks; and how long it lasts."""
KINDS = {"strike": 10, "signal": 4, "pause": 3, "loss": 3}
"""Weights of what is done, in ``case_of``."""
STRIKES = ("SIGKILL", "SIGSTOP")
SIGNALS = ("SIGTERM", "SIGINT", "SIGHUP")
"""From outside: a batch system, a terminal, an out-of-memory daemon."""
LOSSES = (("run folder", "moved"), ("run folder", "removed"), ("scratch", "removed"))
LONGEST_PAUSE_S = 8.0
"""More than any bound of the run but ``timeout_s``."""
POLL_S = 0.02


@dataclass(frozen=True)
class Case:
    """What shall happen in one run; follows from the seed and the number of the run."""

    index: int
    mesh_size: int
    victim: str
    """``rank 0`` and so on, ``torchrun``, ``launcher``, ``all``, ``run folder`` or ``scratch``."""
    sent: str
    """``SIGKILL``, ``SIGSTOP``, one of ``SIGNALS``, ``pause``, ``moved`` or ``removed``."""
    at: float
    """The moment, in 0..1: below ``STARTING`` a share of the usual start-up, else of chunks and end."""
    pause_s: float = 0.0
    """Seconds for which all stand still."""

    @property
    def rank(self) -> int | None:
        """The victim's rank, if it is one."""
        return int(self.victim.removeprefix("rank ")) if self.victim.startswith("rank ") else None

    @property
    def ends_the_launcher(self) -> bool:
        """Whether nobody is left to report."""
        return self.victim == "launcher" and self.sent != "SIGSTOP"

    @property
    def goes_on(self) -> bool:
        """Whether the run may go on and end well, however early it was struck."""
        is_held = self.victim == "launcher" and self.sent == "SIGSTOP"
        return is_held or self.victim in ("all", "run folder", "scratch")


def case_of(seed: int, index: int) -> Case:
    """Draw the case of one run."""
    draw = random.Random(f"{seed} {index}")  # noqa: S311  to be repeated, not to be secret
    mesh_size = draw.choice(MESH_SIZES)
    kind = draw.choices([*KINDS], [*KINDS.values()])[0]
    at = draw.random()
    if kind == "pause":
        return Case(index, mesh_size, "all", "pause", at, draw.uniform(0.5, LONGEST_PAUSE_S))
    if kind == "loss":
        return Case(index, mesh_size, *draw.choice(LOSSES), at)
    # A rank in half of the runs, so that each kind of victim is seen often in a hundred.
    ranks = [f"rank {rank}" for rank in range(mesh_size + 1)]
    victim = draw.choice([draw.choice(ranks), draw.choice(ranks), "torchrun", "launcher"])
    return Case(index, mesh_size, victim, draw.choice(SIGNALS if kind == "signal" else STRIKES), at)


@dataclass(frozen=True)
class Usual:
    """How long an undisturbed run takes, in seconds."""

    start_s: float
    run_s: float


class Family:
    """All processes and folders of one run, its processes by the run folder in their command lines."""

    def __init__(self, run_dir: Path, script: list[str]) -> None:
        self.run_dir, self._others = run_dir, set(psutil.pids())
        self.popen = subprocess.Popen(script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.members: dict[str, psutil.Process] = {"launcher": psutil.Process(self.popen.pid)}

    def look(self) -> None:
        """Find who has been started since."""
        known = {member.pid for member in self.members.values()}
        for pid in set(psutil.pids()) - self._others - known:
            with contextlib.suppress(psutil.Error):
                process = psutil.Process(pid)
                command = process.cmdline()
                if str(self.run_dir) not in command:
                    continue  # not ours, or between fork and exec
                # Between fork and exec a child shows its parent's command: torchrun is the first that has it,
                # and a child of the launcher that is neither is looked at again.
                if is_torchrun(command):
                    self.members.setdefault("torchrun", process)
                elif (rank := process.environ().get("RANK")) is not None:
                    self.members[f"rank {rank}"] = process

    def alive(self, *names: str) -> list[str]:
        """Return who of these, or of all, is there and no zombie."""
        return [name for name, p in self.members.items() if (not names or name in names) and is_there(p)]

    @property
    def scratch(self) -> Path | None:
        """The folder in which torchrun and the ranks meet, once it is there."""
        for owner in registry().glob(f"{SCRATCH}*/{OWNER}"):
            with contextlib.suppress(OSError, ValueError, KeyError):
                if json.loads(owner.read_bytes())["pid"] == self.popen.pid:
                    return owner.parent
        return None

    def has(self, victim: str) -> bool:
        """Say whether a victim has come to be."""
        if victim == "run folder":
            return (self.run_dir / Plan.FILE_NAME).exists()
        if victim == "scratch":
            return self.scratch is not None
        return victim == "all" or victim in self.members

    def end(self) -> None:
        """Kill what is left, and reap the launcher."""
        for process in self.members.values():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self.popen.wait()


def is_there(process: psutil.Process) -> bool:
    """Return whether a process runs or is stopped; a zombie is gone, only its parent has not looked."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


class Moment:
    """When a case's strike is due: after a time at start-up, else after a chunk."""

    def __init__(self, case: Case, began: float, usual: Usual, run_dir: Path) -> None:
        share = (case.at - STARTING) / (1 - STARTING) * (1 + ENDING)
        chunk = share * CHUNKS
        self._chunk, self._after_s = int(chunk), (chunk - int(chunk)) * CHUNK_S
        if share >= 1:
            self._chunk, self._after_s = CHUNKS, (share - 1) / ENDING * END_S
        self._run_dir = run_dir
        self._at = began + case.at / STARTING * usual.start_s if case.at < STARTING else None

    def has_come(self) -> bool:
        """Look whether it is due."""
        if self._at is None:
            emits = [e.at_ns for e in read_entries(self._run_dir, 0) if e.name == "emit"]
            if len(emits) >= max(self._chunk, 1):
                self._at = emits[max(self._chunk, 1) - 1] / 1e9 + self._after_s
        return self._at is not None and time.monotonic() > self._at


def strike(case: Case, family: Family) -> bool:
    """Do what the case says; return whether there was still somebody, or something, to do it to.

    Blocks:
        For the length of a pause.
    """
    if case.victim in ("run folder", "scratch"):
        folder = family.run_dir if case.victim == "run folder" else family.scratch
        if folder is None or not folder.exists() or family.popen.poll() is not None:
            return False
        if case.sent == "moved":
            folder.rename(folder.with_name(f"{folder.name}-moved"))
        else:
            shutil.rmtree(folder, ignore_errors=True)
        return True
    if case.victim == "all":
        return _pause(case, family)
    victim = family.members.get(case.victim)
    if victim is None or not is_there(victim):
        return False
    with contextlib.suppress(psutil.NoSuchProcess):
        victim.send_signal(signal.Signals[case.sent])
    return True


def _pause(case: Case, family: Family) -> bool:
    """Stop everybody, those first who start others, and let them go on in the other order."""
    if family.popen.poll() is not None:
        return False
    stopped: dict[str, psutil.Process] = {}
    while True:
        family.look()
        new = {name: process for name, process in family.members.items() if name not in stopped}
        if not new:
            break
        for process in new.values():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.suspend()
        stopped |= new
    time.sleep(case.pause_s)  # what is tried
    for process in reversed(stopped.values()):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.resume()
    return True
