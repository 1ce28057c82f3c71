"""``ppwork submit`` and ``ppwork attach``: a run of Slurm's, handed in and followed on the terminal."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ppwork.cli.output import err, out, write_json, write_text
from ppwork.cli.screen import Shown
from ppwork.launcher.job import QUEUED, Job, find, follow, submit
from ppwork.launcher.nodes.places import Places
from ppwork.pictures.run_table import table_of
from ppwork.plan import Plan
from ppwork.process import STOPPED


def hand_in(plan: Plan, places: Places, out_dir: Path | None, limit_s: float, *, as_json: bool) -> None:
    """Submit a plan, and print how to follow it."""
    try:
        job = submit(plan, on=places, out=out_dir, limit_s=limit_s)
    except KeyboardInterrupt:
        write_text(f"interrupted; the run may be queued all the same\n  check first: {QUEUED}", to=err)
        raise GoesOn(STOPPED) from None
    if as_json:
        write_json({"job": job.job_id, "run_dir": str(job.run_dir)})
    else:
        write_text(f"job {job.job_id}: {job.run_dir}\nfollow it: ppwork attach {job.run_dir}")


def attach_command(
    job: Annotated[str, typer.Argument(metavar="RUN", help="Folder of a submitted run, or Slurm's number.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON only.")] = False,
) -> None:
    """Follow a submitted run from the queue to its end, as `run` shows one; Ctrl-C leaves it as it is."""
    found = find(job)
    try:
        if as_json:
            write_json(follow(found).summary)
            return
        with Shown(err) as shown:
            finished = follow(found, progress=shown.entry, view=lambda followed: Queued(followed, shown))
    except KeyboardInterrupt:
        write_text(f"job {found.job_id} goes on; end it: ppwork stop {found.run_dir}", to=err)
        raise GoesOn(STOPPED) from None
    out.print(table_of(finished))


class GoesOn(SystemExit):
    """Ctrl-C at a run that does not end by it; that has been said."""


class Queued:
    """View of a job on the terminal: what Slurm says of it stands beside the bar."""

    def __init__(self, job: Job, shown: Shown) -> None:
        self._job, self._shown = job, shown
        shown.begin(job.plan, job.run_dir)

    def look(self) -> None:
        """Show what is new."""
        self._shown.waits(f"job {self._job.job_id}: {self._job.last or 'handed in'}")
        self._shown.look()

    def end(self, finished: object) -> None:
        """Show nothing more: the table comes."""
