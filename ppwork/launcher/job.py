"""A run that Slurm starts by itself: submit it, look at it, stop it; none of it lives in this process.

``sbatch`` takes a script of one line. On the job's first node the script starts the launcher (``main``, which
calls ``launch``), and ``srun`` starts the nodes inside the job. ``job.json`` in the run's folder says what
runs and where. The nodes must see the folder at the same path; readers find the records there.
"""

from __future__ import annotations

import contextlib
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import msgspec

from ppwork.diagnosis.runs import diagnose
from ppwork.errors import NotOverError, PlanError, PPWorkError, RunFailed, UnavailableError
from ppwork.launcher.checks import check_limit, resolve
from ppwork.launcher.launch import DEFAULT_LIMIT_S, Progress, launch
from ppwork.launcher.nodes.places import Options, Places, Slurm
from ppwork.launcher.slurm import ASK_S, GOING, PENDING, NoAnswer, ask, state_of
from ppwork.launcher.view import NoView, StopAsked, View
from ppwork.plan import Plan
from ppwork.process import STOPPED
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.files import read_json, write_whole
from ppwork.records.folder import run_folder
from ppwork.records.run import END_FILE, LaunchEnd, Run
from ppwork.records.spans import span_file
from ppwork.records.tail import SpanTail, last_lines

JOB_FILE, JOB_LOG = "job.json", "slurm.log"
"""In the run's folder before the run: the submitted plan and options, and the output of the job."""
NAME = "ppwork"
"""Name of our jobs in the queue; their comment is the run's folder."""
QUEUED = f"`squeue --me --name={NAME} --format='%i %k'`: number and folder of each that is queued"
LOOK_S = 0.1
LATE_S = 10.0
"""Seconds after a job's end in which its last word may still come: a network folder is late."""
LOOKED_S = 7 * 86_400.0
"""Seconds for which a job is followed by default."""
REFUSED = 2
"""Exit code of a launcher that started nothing."""


class JobRecord(msgspec.Struct, frozen=True, kw_only=True):
    """What was submitted: ``job.json``."""

    plan: Plan
    nodes: int
    asked: tuple[str, ...]
    """Options of ``sbatch`` and ``srun``."""
    options: Options
    limit_s: float
    job_id: Annotated[str, msgspec.Meta(pattern=r"^[0-9]{0,18}\Z")] = ""
    """Slurm's id; empty until Slurm has taken the job. Checked, as anybody may write the file: it goes to
    ``scancel``."""

    def save(self, run_dir: Path) -> None:
        """Write the record.

        Raises:
            OSError: The file cannot be written.
        """
        write_whole(run_dir / JOB_FILE, msgspec.json.encode(self))

    @classmethod
    def load(cls, run_dir: Path) -> JobRecord:
        """Read the record.

        Raises:
            PlanError: The folder is not that of a job, or its file does not read.
        """
        if (record := read_json(run_dir / JOB_FILE, cls)) is None:
            raise PlanError(f"{run_dir} is no folder of a submitted run.", check_first="`ppwork ps`")
        return record


class Job:
    """A run in Slurm's hands; ``pp.attach`` follows it to its end.

    Attributes:
        job_id: Slurm's number of the job.
        run_dir: The run's folder.
        last: The job's state at the last query.
    """

    def __init__(self, job_id: str, run_dir: Path, last: str = "") -> None:
        self.job_id, self.run_dir, self.last = job_id, run_dir, last

    @property
    def plan(self) -> Plan:
        """The submitted plan."""
        return JobRecord.load(self.run_dir).plan

    @property
    def state(self) -> str:
        """Slurm's state of the job now: ``PENDING (Priority), 2 of 3 in the queue``, ``RUNNING``, ``FAILED``.

        Raises:
            UnavailableError: Slurm does not answer.
        """
        self.last = state_of(self.job_id)
        return self.last

    @property
    def is_over(self) -> bool:
        """Whether the job had ended at the last query."""
        return bool(self.last) and self.last.partition(" ")[0] not in GOING

    def stop(self) -> None:
        """End the job with ``scancel``, even while it waits.

        Raises:
            PlanError: The job is not the one of this folder.
            UnavailableError: Slurm does not answer, or the job is not yours.
        """
        of_job = ("--states=all", f"--jobs={self.job_id}", "--format=%i|%k")
        for said in ask("squeue", "--noheader", *of_job).splitlines():
            comment = said.partition("|")[2]
            if Path(comment).resolve() != self.run_dir.resolve():  # the folder's number may be out of date
                raise PlanError(
                    f"Slurm's job {self.job_id} is not of {self.run_dir}, and was not ended: "
                    f"its comment is {comment!r}.",
                    check_first="`ppwork ps`: the number of the job that is meant",
                )
            ask("scancel", self.job_id)

    def __repr__(self) -> str:
        return f"Job({self.job_id}, {str(self.run_dir)!r}{f', {self.last}' if self.last else ''})"


def submit(plan: Plan, *, on: Places, out: Path | str | None = None, limit_s: float = DEFAULT_LIMIT_S) -> Job:
    """Hand a plan to Slurm and return at once; the run no longer needs this process.

    Args:
        plan: The run's plan.
        on: ``pp.Slurm``: nodes, partition and time of the job.
        out: Run folder, new or empty, at the same path on the nodes; ``None`` makes one under ``runs/``.
        limit_s: Hard limit on the whole run once it has begun, in seconds.

    Raises:
        PlanError: The plan cannot work, or ``on`` has no queue; nothing is queued.
        UnavailableError: Slurm refuses the job; nothing is queued. If Slurm did not answer in time, the error
            says that the job may be queued.
    """
    if not isinstance(on, Slurm):
        raise PlanError("A run was to be submitted to hosts without a queue.", check_first="on=pp.Slurm(...)")
    check_limit(limit_s)
    plan = resolve(plan, elsewhere=True)
    on.placed(plan.world_size)
    options = Options(**{name: getattr(on, name) for name in Options.__annotations__})  # type: ignore[typeddict-item]
    nodes = len(on.hosts)
    with run_folder(out) as run_dir:
        record = JobRecord(plan=plan, nodes=nodes, asked=on.asked, options=options, limit_s=limit_s)
        record.save(run_dir)
        launcher = [on.python or sys.executable, "-P", "-m", "ppwork", "batch", str(run_dir)]
        try:
            said = ask(
                "sbatch", "--parsable", "--no-requeue", f"--job-name={NAME}", f"--comment={run_dir}",
                f"--nodes={nodes}", "--ntasks-per-node=1", f"--output={run_dir / JOB_LOG}", *on.asked,
                script=f"#!/bin/sh\nexec {shlex.join(launcher)}\n",
            )  # fmt: skip
        except NoAnswer as late:  # if the job was queued nevertheless, its launcher reads the file
            what = f"{late.what} The run may be queued all the same."
            raise UnavailableError(what, check_first=QUEUED) from late
        except UnavailableError:
            (run_dir / JOB_FILE).unlink()
            raise
        job = Job(said.partition(";")[0], run_dir)
        if not job.job_id.isdecimal():
            raise UnavailableError(f"Slurm's sbatch gave no number of a job: {said!r}.", check_first=QUEUED)
        msgspec.structs.replace(record, job_id=job.job_id).save(run_dir)
        return job


def main(run_dir: Path) -> int:
    """Be the launcher of a job, on the first of its nodes; return the exit code."""
    for number in (signal.SIGTERM, signal.SIGHUP):  # scancel, and the job's time limit
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        job = JobRecord.load(run_dir)
        places = Slurm(job.nodes, srun=job.asked, **job.options)
        beside = (JOB_FILE, JOB_LOG)
        run = launch(job.plan, out=run_dir, limit_s=job.limit_s, on=places, check=False, beside=beside)
    except PPWorkError as refused:
        sys.stderr.write(f"{refused}\n")
        if not (run_dir / END_FILE).exists():  # it exists if an administrator has requeued the job
            with contextlib.suppress(OSError):  # this node does not see the folder: Slurm's log has the line
                LaunchEnd(exit_code=REFUSED, what=refused.what, check_first=refused.check_first).save(run_dir)
        return REFUSED
    return 0 if run.failure is None else 1


def follow(
    job: Job,
    *,
    check: bool = True,
    progress: Progress | None = None,
    limit_s: float = LOOKED_S,
    view: Callable[[Job], View] = NoView,
) -> Run:
    """Follow a job to its end, by the records in its folder; ``lab.job.attach`` documents it."""
    tail, shown = SpanTail(span_file(job.run_dir, STAGE0_RANK)), view(job)
    until_s, asked_s, over_s, stopped = time.monotonic() + limit_s, 0.0, None, False

    def tell() -> None:
        for entry in tail.read():
            if progress is not None:
                progress(entry)

    while (end := LaunchEnd.load(job.run_dir)) is None:
        now = time.monotonic()
        if now > until_s:
            what = f"Job {job.job_id} was not over after {limit_s:g} s."
            raise NotOverError(what, check_first="it goes on")
        if now - asked_s > ASK_S:
            with contextlib.suppress(UnavailableError):  # Slurm's controller is away, but the job is not
                _ = job.state
            now = asked_s = time.monotonic()  # the answer may have taken ``slurm.ANSWER_S``
        if job.is_over:
            over_s = over_s or now
            if now - over_s > LATE_S:
                break
        try:
            if not stopped:
                shown.look()
        except StopAsked:
            stopped = True
            job.stop()
        tell()
        time.sleep(LOOK_S)
    tell()
    run = _finished(job, end)
    shown.end(run)
    if run.failure is not None and check:
        raise run.failure
    return run


def _finished(job: Job, end: LaunchEnd | None) -> Run:
    """Return how a job ended, by its launcher's last word or by what Slurm says."""
    if end is None:
        words = "".join(f": {line.strip()}" for line in last_lines(job.run_dir / JOB_LOG, 1))
        what = f"Slurm's job {job.job_id} ended ({job.last}), and its launcher left no word{words}"
        check_first = f"do its nodes see {job.run_dir}? {JOB_LOG} there; `scontrol show job {job.job_id}`"
        return Run(job.run_dir, None, RunFailed(what, check_first=check_first))
    if not end.what:
        return Run(job.run_dir, end.exit_code)
    failure = RunFailed(end.what, check_first=end.check_first)
    if end.exit_code not in (0, STOPPED) and (job.run_dir / Plan.FILE_NAME).exists():
        failure = diagnose(job.run_dir, end.exit_code).as_error()
    return Run(job.run_dir, end.exit_code, failure)


def find(which: Job | Path | str | int) -> Job:
    """Return a job, given the job itself, its run's folder, or Slurm's number of it.

    Raises:
        PlanError: There is no such job.
        UnavailableError: Slurm did not say whether it took the job, or does not answer.
    """
    if isinstance(which, Job):
        return which
    path = Path(str(which))
    if (path / JOB_FILE).exists() or not str(which).isdecimal():
        job = Job(JobRecord.load(path.absolute()).job_id, path.absolute())
        if not job.job_id:
            raise UnavailableError(f"{path} does not say whether Slurm took its job.", check_first=QUEUED)
        return job
    found = next((job for job in own_jobs() if job.job_id == str(which)), None)
    if found is None:
        raise PlanError(f"Slurm has no job {which} of yours that is a run.", check_first="its folder")
    return found


def own_jobs() -> list[Job]:
    """Return our jobs in the queue; none if there is no Slurm, or if it is installed without a cluster.

    Raises:
        UnavailableError: Slurm does not answer.
    """
    if shutil.which("squeue") is None:
        return []
    try:
        said = ask("squeue", "--noheader", "--me", f"--name={NAME}", "--format=%i|%T|%r|%k")
    except UnavailableError as error:
        if "configuration source" in error.what:
            return []
        raise
    rows = [line.split("|", 3) for line in said.splitlines()]
    return [
        Job(job_id, Path(folder), f"{state} ({reason})" if state == PENDING else state)
        for job_id, state, reason, folder in rows
    ]
