"""A long run of somebody else's launcher, by its processes: who is in it, and whether all are gone."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

import psutil

from ppwork.launcher.processes import is_alive
from ppwork.process import is_torchrun
from ppwork.records.pulse import read_pulse

if TYPE_CHECKING:
    from pathlib import Path

FREEZE_S = 1.0
SCRIPT = f"""
import sys, ppwork as pp
plan = pp.Plan(mesh_size=2, chunks=2000, backend="gloo", stage0="toy_stages:Counter",
               stage1="toy_stages:Slow", options={{"step_s": 0.05}}, freeze_s={FREEZE_S})
pp.launch(plan, out=sys.argv[1])
"""
"""A program that launches a run of some minutes into the folder that it is given."""
GONE_S = 2.0
"""So long after a death all others may still be there."""


def torchrun_of(launcher_pid: int) -> psutil.Process | None:
    """The torchrun that a launcher has started, if it has; its other children come and go."""
    for child in psutil.Process(launcher_pid).children():
        with contextlib.suppress(psutil.Error):
            if is_torchrun(child.cmdline()):
                return child
    return None


def agent_and_ranks(run_dir: Path) -> tuple[psutil.Process, list[psutil.Process]]:
    """The torchrun of a run that has begun, and its three ranks in order, as their pulses say."""
    ranks = [read_pulse(run_dir, rank).process() for rank in range(3)]
    return ranks[0].parent(), ranks


def kill(*processes: psutil.Process | None) -> None:
    for process in processes:
        if process is not None and process.is_running():
            process.kill()


def all_gone(processes, deadline_s: float) -> list[psutil.Process]:
    """Wait for processes to end; return those that are still there at the deadline.

    A dead one whose exit code nobody has asked for is gone: psutil's own wait would count it as alive.
    """
    end = time.monotonic() + deadline_s
    while (alive := [process for process in processes if is_alive(process)]) and time.monotonic() < end:
        time.sleep(0.02)  # the interval of asking
    return alive
