"""``ppwork ps``, ``stop``, ``collect``, ``diagnose``: runs listed, ended, brought together, explained."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from ppwork.cli.options import path_of
from ppwork.cli.output import err, out, write_json, write_text
from ppwork.diagnosis.runs import diagnose
from ppwork.errors import PlanError, UnavailableError
from ppwork.launcher.job import JOB_FILE, Job, find, own_jobs
from ppwork.launcher.registry import RunEntry, own_runs, runs_of_own_torchruns, stop
from ppwork.launcher.standing import diagnose_any
from ppwork.plan import Plan
from ppwork.records.collect import collect
from ppwork.records.pulse import LONG_PAUSE_S, PulseState, nothing_to_encode, read_pulse
from ppwork.records.run import LaunchEnd
from ppwork.records.threads import dead_threads

STOPPED = "stopped"
"""State of a rank whose process is stopped (SIGSTOP), whatever it was in; its pulse cannot say so."""


def list_runs(
    as_json: Annotated[bool, typer.Option("--json", help="Print the list as JSON.")] = False,
) -> None:
    """List the runs that are going on this machine, and those that you have in Slurm's queue.

    Of each: folder, age, what each rank does, who launched it. Also those of your own torchrun.
    """
    jobs: list[Job] = []
    try:
        jobs = own_jobs()
    except UnavailableError as error:  # the runs of this machine are known all the same
        write_text(error.what, to=err)
    submitted = {str(job.run_dir) for job in jobs}  # of which this may be the first node
    ours = [run for run in _whole_runs() if run.run_dir not in submitted]
    others = runs_of_own_torchruns([*submitted, *(run.run_dir for run in ours)])
    runs = list(map(_facts, [*ours, *others]))
    runs += map(_facts_of_job, jobs)
    if as_json:
        write_json(runs)
        return
    if not runs:
        out.print("no run is going")
        return
    write_text("\n".join(line for run in runs for line in _lines_of(run)))


def stop_runs(
    run_dir: Annotated[
        Path | None, typer.Argument(metavar="RUN", help="Folder of a run, or Slurm's number of one.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="End all runs on this machine; a submitted one has to be named.")
    ] = False,
) -> None:
    """End a run that is going; a notebook that launched it keeps its kernel and gets a `RunFailed`."""
    if (run_dir is None) != every:
        raise PlanError("Exactly one of RUN and --all says what to stop.", check_first="`ppwork ps`")
    folder = run_dir.resolve() if run_dir is not None else None
    if run_dir is not None and (job := _job(run_dir)) is not None:
        job.stop()
        write_text(f"cancelled job {job.job_id}: {job.run_dir}")
        return
    runs = [run for run in _whole_runs() if every or Path(run.run_dir).resolve() == folder]
    if run_dir is not None and not runs:
        own = [run for run in runs_of_own_torchruns([]) if Path(run.run_dir) == folder]
        check = f"end its torchrun, process {own[0].agent.pid}" if own else "`ppwork ps` lists them"
        what = (
            f"The run in {run_dir} is of your own torchrun."
            if own
            else f"No run of yours is going in {run_dir}."
        )
        raise PlanError(what, check_first=check)
    for run in runs:
        killed = stop(run)
        write_text(f"{'killed' if killed else 'stopped'} {run.run_dir}")


def _whole_runs() -> list[RunEntry]:
    """Return the runs here: of one over several nodes of this machine the launcher's entry, the first."""
    first: dict[str, RunEntry] = {}
    for run in own_runs():
        first.setdefault(run.run_dir, run)
    return [*first.values()]


def _lines_of(run: Mapping[str, Any]) -> Iterator[str]:
    """Yield the folder of a run, alone on its line so that it can be copied, and below it what it does."""
    yield run["run_dir"]
    if "job" in run:
        yield f"  job {run['job']}, {run['state']}"
    else:
        launcher = f"launcher {run['launcher']}" if run["launcher"] else "your own"
        yield f"  {run['age_s']:.0f} s, {launcher}, torchrun {run['torchrun']}"
    if ranks := run.get("waits") or ", ".join(map(_in_words, run["ranks"])):
        yield f"  {ranks}"


def _facts(run: RunEntry) -> dict[str, Any]:
    return {
        "run_dir": run.run_dir,
        "age_s": round(time.time() - run.at, 1),
        "launcher": None if run.own_torchrun else run.launcher.pid,
        "torchrun": run.agent.pid,
        "ranks": _ranks(Path(run.run_dir)),
        **({"waits": run.waits} if run.waits else {}),
    }


def _facts_of_job(job: Job) -> dict[str, Any]:
    return {"run_dir": str(job.run_dir), "job": job.job_id, "state": job.last, "ranks": _ranks(job.run_dir)}


def _job(which: Path) -> Job | None:
    """Return the submitted run of this folder or number that has not ended.

    Raises:
        PlanError: There is none of this number.
        UnavailableError: Slurm does not say how it is.
    """
    if not (which / JOB_FILE).exists() and (which.is_dir() or not str(which).isdecimal()):
        return None
    job = find(which)
    _ = job.state
    return None if job.is_over else job


def _ranks(run_dir: Path) -> list[dict[str, Any]]:
    """Return the state of each rank; nothing for a program that is not ours and has no plan."""
    try:
        plan = Plan.load(run_dir)
    except PlanError:
        return []
    pulses = [read_pulse(run_dir, rank) for rank in range(plan.world_size)]
    return [
        {
            "rank": rank,
            "state": STOPPED
            if pulse and pulse.is_stopped
            else str(pulse.state if pulse else PulseState.STARTING),
            "pid": pulse.pid if pulse else None,
            "doing": pulse.doing if pulse else "",
            "chunk_index": pulse.ids.get("chunk_index") if pulse else None,
            "paused_s": pulse.paused_s if pulse else 0.0,
            "dead_threads": [str(thread) for thread in dead_threads(run_dir, rank)],
        }
        for rank, pulse in enumerate(pulses)
    ]


def _in_words(rank: dict[str, Any]) -> str:
    """Return a rank as the table has it.

    >>> _in_words({"rank": 0, "state": "busy", "pid": 4711, "doing": "encode", "chunk_index": 3,
    ...            "paused_s": 83.2, "dead_threads": ["thread 'reader' died of OSError"]})
    "0:busy (pid 4711, encode of chunk 3, nothing to encode for 83 s, thread 'reader' died of OSError)"
    """
    chunk = "" if rank["chunk_index"] is None else f" of chunk {rank['chunk_index']}"
    facts = [f"pid {rank['pid']}"] if rank["pid"] else []
    if rank["state"] == STOPPED:
        return f"{rank['rank']}:{STOPPED} ({facts[0]}; `kill -CONT {rank['pid']}` lets it go on)"
    facts += [rank["doing"] + chunk] if rank["doing"] else []
    facts += [nothing_to_encode(rank["paused_s"])] if rank["paused_s"] >= LONG_PAUSE_S else []
    facts += rank["dead_threads"]
    return f"{rank['rank']}:{rank['state']}" + (f" ({', '.join(facts)})" if facts else "")


def collect_command(
    runs: Annotated[
        list[Path],
        typer.Argument(
            metavar="RUN...", help="Run folder of each host; also files with what torchrun printed."
        ),
    ],
    out_dir: Annotated[Path, typer.Option("--out", parser=path_of, help="New folder.")],
) -> None:
    """Bring what one run left on several hosts together into one folder."""
    collect([run for run in runs if run.is_dir()], out_dir, [run for run in runs if not run.is_dir()])
    write_text(str(out_dir))


def failure_line(run_dir: Path) -> str:
    """Return a line that says how a run failed, for pages that do not show it; "" if none is known."""
    end = LaunchEnd.load(run_dir)
    if not any(run_dir.glob("failure-rank*.json")) and (end is None or not (end.exit_code or end.what)):
        return ""
    return f"This run failed: {diagnose([run_dir]).sentence}\nMore: ppwork diagnose {run_dir}"


def diagnose_command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN...",
            help="Run folder, torchrun's --log-dir, or a file with what it printed; one for each host. For a "
            "job that stands still now: torchrun's process id, or nothing if it is the only one (py-spy).",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything as JSON.")] = False,
    exit_code: Annotated[
        bool,
        typer.Option(
            "--exit-code", help="Exit with 1 if the run failed; without it 0 means that there is a report."
        ),
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="As --exit-code, and 1 also if a run that ended well was odd.")
    ] = False,
) -> None:
    """Say which rank failed first and why, who waited for whom, and what to check first."""
    diagnosis = diagnose_any(runs or [])
    if as_json:
        write_json(diagnosis.to_dict())
    else:
        write_text(diagnosis.text)
    if ((exit_code or strict) and diagnosis.cause is not None) or (strict and diagnosis.is_odd):
        raise typer.Exit(1)
