"""A submitted run in view of a cell, from the queue to its end."""

from __future__ import annotations

import time
from pathlib import Path

from ppwork.lab.live import view_of
from ppwork.lab.progress import RankState, RunProgress
from ppwork.lab.run import Run
from ppwork.launcher.job import LOOKED_S, Job, find, follow
from ppwork.launcher.launch import Progress
from ppwork.launcher.view import View


def attach(
    job: Job | Path | str | int,
    *,
    check: bool = True,
    progress: Progress | None = None,
    live: bool | None = None,
    limit_s: float = LOOKED_S,
) -> Run:
    """Follow a submitted run to its end, and return it as ``launch`` does; also one that has ended.

    While it waits the view says how many are before it. The Stop button ends the job; Ctrl-C, or a kernel
    that is gone, leaves it as it is.

    Args:
        job: As ``submit`` returned it, the folder of its run, or Slurm's number while it is in the queue.
        check: Raise if the run failed; else the failure is in ``Run.failure``.
        progress: Gets rank 0's spans and instants while they come.
        live: Show it in the cell; ``None``: in a notebook, unless ``PPWORK_NONINTERACTIVE`` is set.
        limit_s: Seconds after which nobody looks any more.

    Raises:
        PlanError: There is no such job.
        NotOverError: It was not over after ``limit_s``: it goes on.
        UnavailableError: Slurm does not answer.
        RunFailed: The run failed, or Slurm ended it (only with ``check``).
        KeyboardInterrupt: As pressed; the job goes on.

    Blocks:
        Until the run has ended; at most ``limit_s``.
    """

    def view(found: Job) -> View:
        return view_of(JobProgress(found), live=live)

    run = follow(find(job), check=check, progress=progress, limit_s=limit_s, view=view)
    return Run.of(run)


class JobProgress(RunProgress):
    """Follows a job: its place in the queue, then the files of its run.

    Their times are of a clock that nobody has compared with ours: what is newest ended before we looked, and
    the least that this was ever ago is how far that clock is behind.
    """

    def __init__(self, job: Job) -> None:
        super().__init__(job.plan, job.run_dir)
        self._job, self._behind_ns = job, 1 << 62

    def look(self) -> list[RankState]:
        """Read what is new, and return every rank as it is now."""
        ranks = super().look()
        self.name = f"{self._job.run_dir.name}, job {self._job.job_id}: {self._job.last or 'handed in'}"
        if self.bars:  # nothing before them tells how long that node has been up
            newest = max(bar.end_ns or bar.start_ns for bar in self.bars)
            now_ns = time.monotonic_ns()
            self._behind_ns = min(self._behind_ns, now_ns - newest)
            self.now_ns = now_ns - self._behind_ns
        return ranks
