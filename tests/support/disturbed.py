"""The N faults under plain torchrun: a worker run over two hosts that is disturbed, and who left when.

What a supervisor on every host adds is measured against these. Whoever waits for a silent host or network has
``timeout_s`` alone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import host_processes
from hosts import job_over
from waiting import wait_for

import ppwork as pp
from ppwork.faults.catalogue import small_plan
from ppwork.launcher.processes import is_alive
from ppwork.records.pulse import read_pulse
from ppwork.records.spans import read_entries

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import psutil
    from hosts import Job

    from ppwork.diagnosis.findings import Diagnosis

TIMEOUT_S = 4.0
PLAN = small_plan().replace(chunks=1_000_000, timeout_s=TIMEOUT_S)


@dataclass
class Ended:
    """How a disturbed run ended.

    Attributes:
        after_s: Seconds from the disturbance until each rank was gone; one that stays has none.
        records: Ranks that left a failure record, by host.
        said: The verdict from the folders and consoles of both hosts.
        alone: The verdict from the first host's folder.
    """

    after_s: dict[int, float]
    records: list[list[int]]
    said: Diagnosis
    alone: Diagnosis


def ranks_of(job: Job) -> dict[int, psutil.Process]:
    """Wait until chunks come out; return the process of each rank, as this machine sees it."""
    folders = [folder / "run" for folder in job.folders]
    wait_for(lambda: any(entry.name == "emit" for entry in read_entries(folders[0], 0)), 100)
    found = {}
    for host, folder in zip(job.hosts, folders, strict=True):
        for rank in range(PLAN.world_size):
            if (pulse := read_pulse(folder, rank)) is not None:
                found[rank] = host_processes.process(host, pulse.pid)
    return found


def disturbed(
    tmp_path: Path,
    disturb: Callable[[Job, dict[int, psutil.Process]], None],
    *,
    ranks: tuple[int, int] = (1, 2),
    stays: tuple[int, ...] = (),
    within_s: float = 60.0,
) -> Ended:
    """Start the worker over two hosts, disturb it once chunks come, and watch who leaves.

    Args:
        tmp_path: For all of it.
        disturb: Does it; gets the job and the process of each rank.
        ranks: How many on each host.
        stays: Ranks that are not waited for.
        within_s: Longest wait for the others.
    """
    for name in ("hosta", "hostb"):
        (tmp_path / name / "run").mkdir(parents=True)
        PLAN.save(tmp_path / name / "run")
    with job_over(tmp_path, "-m", "ppwork", "worker", "{local}/run", ranks=ranks) as job:
        processes = ranks_of(job)
        assert sorted(processes) == list(range(PLAN.world_size))
        disturb(job, processes)
        start, after_s = time.monotonic(), {}

        def gone() -> bool:
            now_s = time.monotonic() - start
            after_s.update({r: now_s for r, p in processes.items() if r not in after_s and not is_alive(p)})
            return after_s.keys() >= processes.keys() - set(stays)

        wait_for(gone, within_s)
        here, there = (folder / "run" for folder in job.folders)
        # torchrun writes its report once its ranks are gone, and the verdict reads it.
        ended = [
            a for a, host in zip(job.agents, job.hosts, strict=True) if not stays or host is job.hosts[0]
        ]
        wait_for(lambda: all(agent.poll() is not None for agent in ended), within_s)
        spoke = [
            sorted(int(file.stem[-1]) for file in folder.glob("failure-rank?.json"))
            for folder in (here, there)
        ]
        return Ended(after_s, spoke, pp.diagnose([here, there, *job.logs]), pp.diagnose(here))
