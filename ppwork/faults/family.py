"""The processes of one run, recorded while it goes: its members, when the last was gone, and what is left.

A process is a pid and its start time, so that a pid that was used again is never taken for it, nor ended.
"""

from __future__ import annotations

import contextlib
import threading
import time
from pathlib import Path

import psutil

from ppwork.faults.report import LeftoverProcess
from ppwork.launcher.processes import end, is_alive
from ppwork.launcher.warm import Started
from ppwork.process import is_torchrun
from ppwork.records.spans import read_entries, span_file

LOOK_S = 0.05
"""Seconds between two looks; the times here are as coarse."""
LOOKS_PER_SEARCH = 4
"""A search reads all processes of the machine; a member of a run lives for seconds."""
START_S = 60.0
"""Longest wait for the first chunk of a run that is to be disturbed, in seconds."""


def await_first_chunk(run_dir: Path, launcher: Started) -> None:
    """Wait until rank 0 has emitted a chunk.

    Raises:
        TimeoutError: It has not within a minute, or the launcher ended before.
    """
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and launcher.poll() is None:
        if span_file(run_dir, 0).exists() and any(e.name == "emit" for e in read_entries(run_dir, 0)):
            return
        time.sleep(LOOK_S)
    raise TimeoutError(f"the run in {run_dir} emitted no chunk; its launcher: {launcher.poll()}")


class ProcessFamily:
    """Everything below this process whose command line names a run folder, from now until the block ends.

    Args:
        run_dir: The folder; torchrun and every rank have it among their arguments.
    """

    def __init__(self, run_dir: Path) -> None:
        self._mark = str(run_dir)
        self._members: dict[psutil.Process, list[str]] = {}
        self._ranks: set[psutil.Process] = set()
        self._gone_ns: dict[psutil.Process, int] = {}
        self._seen: set[int] = set()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="fault-family", daemon=True)

    def __enter__(self) -> ProcessFamily:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Stop to watch; what was recorded stays."""
        self._stop.set()
        self._thread.join()

    @property
    def torchrun(self) -> psutil.Process | None:
        """torchrun, once it was seen."""
        return next((process for process, command in self._members.items() if is_torchrun(command)), None)

    @property
    def gone_ns(self) -> int | None:
        """Time at which the last member was gone; ``None`` while one is there, or if there never was one."""
        return self._last_of(set(self._members))

    @property
    def ranks_gone_ns(self) -> int | None:
        """``gone_ns`` of the ranks alone: torchrun and a launcher of their own may outlive them a little."""
        return self._last_of(self._ranks)

    def await_end(self, within_s: float) -> None:
        """Wait until no member is left, at most this long."""
        deadline = time.monotonic() + within_s
        while self.alive() and time.monotonic() < deadline:
            self._stop.wait(LOOK_S)

    def end(self) -> tuple[LeftoverProcess, ...]:
        """Stop to watch; kill exactly the members that are left, and return them."""
        self.close()
        self._look_after()
        remaining = {}
        for process in self.alive():
            with contextlib.suppress(psutil.NoSuchProcess):
                command = " ".join(self._members[process])[-200:]
                remaining[process] = LeftoverProcess(process.pid, process.create_time(), command)
        return tuple(remaining[process] for process in end(list(remaining), 0.0))

    def alive(self) -> list[psutil.Process]:
        """Return the members that are there."""
        return [process for process in self._members if process not in self._gone_ns]

    def _last_of(self, processes: set[psutil.Process]) -> int | None:
        gone = [self._gone_ns.get(process) for process in processes]
        times = [at_ns for at_ns in gone if at_ns is not None]
        return max(times) if times and len(times) == len(gone) else None

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.is_set():
            self._search(me)
            for _ in range(LOOKS_PER_SEARCH):
                self._look_after()
                self._stop.wait(LOOK_S)

    def _search(self, me: psutil.Process) -> None:
        for process in me.children(recursive=True):
            if process.pid in self._seen:
                continue
            with contextlib.suppress(psutil.NoSuchProcess):
                command = process.cmdline()
                # By its parent: a child that was just forked still shows its parent's command, and one that
                # waits to become a rank (``warm_server``) does not show the run yet.
                is_rank = any(p.pid == process.ppid() and is_torchrun(c) for p, c in self._members.items())
                if is_rank or self._mark in command:
                    self._seen.add(process.pid)
                    if is_rank:
                        self._ranks.add(process)
                    self._members[process] = command

    def _look_after(self) -> None:
        for process in self.alive():
            if not is_alive(process):
                self._gone_ns[process] = time.monotonic_ns()
