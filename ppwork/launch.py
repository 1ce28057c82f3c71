"""Runs a plan: checks it, starts its ranks, follows them, and says what came of it. No torch here."""

from __future__ import annotations

import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, overload

import msgspec

from ppwork.checks import free_mb, new_run_dir, resolve
from ppwork.diagnosis import diagnose
from ppwork.errors import RecordError, RunFailed
from ppwork.exit_codes import PAST_LIMIT, STOPPED
from ppwork.failure import write_whole
from ppwork.faults import with_fault
from ppwork.live import Ended, LiveView, NoView, StopAsked, view_of
from ppwork.live_facts import LiveFacts
from ppwork.plan import Plan
from ppwork.processes import registry
from ppwork.run import (
    OUTPUTS_FILE,
    SUMMARY_FILE,
    TORCHRUN_LOG,
    VERIFY_FILE,
    Run,
    add_to_summary,
    queues_of,
)
from ppwork.script import LIMIT_S, ScriptRun, launch_script
from ppwork.tail import SpanTail
from ppwork.timeline import Entry, mesh_idle_ms, read_entries, span_file
from ppwork.topology import LEADER_RANK, STAGE0_RANK
from ppwork.torchrun import child_environment, running, torchrun

DEFAULT_LIMIT_S = 3600.0
FULL_MB = 1.0
"""A disk with less than this at the end of a failed run is named as full."""
_HALF = re.compile(r"\..+\.(part|\d+)")
"""Names of files that are not whole yet: of ``failure.write_whole``, and of the video and picture writers."""

Progress = Callable[[Entry], None]
"""Called on the caller's thread with each new span or instant of rank 0."""


@overload
def launch(
    plan: Plan,
    *,
    out: Path | str | None = None,
    check: bool = True,
    fault: str = "",
    started: Callable[[Plan, Path], None] | None = None,
    progress: Progress | None = None,
    limit_s: float = DEFAULT_LIMIT_S,
    live: bool | None = None,
) -> Run: ...


@overload
def launch(
    plan: Path | str,
    *,
    nproc: int,
    arguments: tuple[str, ...] = (),
    out: Path | str | None = None,
    check: bool = True,
    limit_s: float = LIMIT_S,
    live: bool | None = None,
) -> ScriptRun: ...


def launch(plan: Plan | Path | str, **options: Any) -> Run | ScriptRun:
    """Run a plan, or a program of your own, on ranks of this machine and wait for the end.

    ``pp.launch(plan)`` runs a plan (``launch_plan`` has its options), ``pp.launch("my_ranks.py", nproc=3)`` a
    program in plain ``torch.distributed`` (``launch_script`` has its).
    """
    return launch_plan(plan, **options) if isinstance(plan, Plan) else launch_script(plan, **options)


def launch_plan(
    plan: Plan,
    *,
    out: Path | str | None = None,
    check: bool = True,
    fault: str = "",
    started: Callable[[Plan, Path], None] | None = None,
    progress: Progress | None = None,
    limit_s: float = DEFAULT_LIMIT_S,
    live: bool | None = None,
) -> Run:
    """Run a plan on ``plan.world_size`` processes of this machine and wait for the end.

    Args:
        plan: What to run; ``chunks`` and ``backend`` may be left open.
        out: Run folder, new or empty; ``None`` makes one under ``runs/``.
        check: Raise if the run fails; else the failure is in ``Run.failure``.
        fault: Fault of the catalogue to inject, such as ``F07`` or ``F13/leader-mid-send``, with what its
            case needs of a plan; empty takes the plan's.
        started: Called once with the resolved plan and the run folder, before the ranks start.
        progress: Gets rank 0's spans and instants while they come.
        limit_s: Hard limit on the whole run, in seconds; the ranks' own bounds are in the plan.
        live: Show the run in the cell while it goes, with a Stop button; ``None``: in a notebook, unless
            ``PPWORK_NONINTERACTIVE`` is set.

    Returns:
        The finished run; its summary, logs and spans are in ``run_dir``.

    Raises:
        PlanError: The input cannot work; no rank was started and nothing overwritten.
        RunFailed: A rank failed, or the Stop button was pressed (only with ``check``); says which rank was
            first, its error and its log.
        KeyboardInterrupt: As pressed; no rank is left.

    Blocks:
        Until all ranks have ended; at most ``limit_s`` plus a few seconds of clean-up.
    """
    wanted = fault or plan.fault
    plan = resolve(with_fault(plan, wanted) if wanted else plan)
    registry()  # refused before the run folder is used up
    run_dir = new_run_dir(Path(out) if out is not None else None)
    write_whole(run_dir / Plan.FILE_NAME, msgspec.json.format(plan.to_json(), indent=2))
    if started is not None:
        started(plan, run_dir)
    deadline = time.monotonic() + limit_s
    view = view_of(LiveFacts(plan, run_dir), live=live)
    try:
        exit_code = _run_ranks(plan, run_dir, limit_s, progress, view)
    except KeyboardInterrupt:
        view.end(Ended(Run(run_dir, STOPPED)))
        raise
    failure: RunFailed | None = None
    if exit_code == STOPPED:
        failure = RunFailed(
            f"The run was stopped by its Stop button; no rank is left.\n  folder: {run_dir}",
            check_first="what there is of its timeline: `ppwork timeline` with that folder",
        )
        _remove_halves(run_dir)
    elif exit_code != 0:
        failure = _if_full(run_dir, diagnose(run_dir, exit_code).failed())
        _remove_halves(run_dir)
    else:
        try:
            add_to_summary(run_dir, mesh_figures(plan, run_dir))
            failure = _verify(plan, run_dir, deadline) if plan.verify else None
        except RecordError as error:
            failure = _if_full(run_dir, RunFailed(error.what, check_first=error.check_first))
    finished = Run(run_dir, exit_code, failure)
    view.end(Ended(finished))
    if failure is not None and check:
        raise failure
    return finished


def mesh_figures(plan: Plan, run_dir: Path) -> dict[str, Any]:
    """Return what rank 0 does not know of a run that has ended: the mesh's idle time, every rank's queues."""
    entries = {rank: read_entries(run_dir, rank) for rank in range(plan.world_size)}
    idle = mesh_idle_ms(entries[LEADER_RANK])
    return {
        "mesh_idle_ms": round(statistics.median(idle), 3) if idle else None,
        "queues": [{"rank": rank, **queue} for rank, found in entries.items() for queue in queues_of(found)],
    }


def _run_ranks(
    plan: Plan, run_dir: Path, limit_s: float, progress: Progress | None, view: LiveView | NoView
) -> int:
    tail = SpanTail(span_file(run_dir, STAGE0_RANK))

    def look() -> None:
        view.look()
        if progress is not None:
            for entry in tail.read():
                progress(entry)

    try:
        return torchrun(
            ["-m", "ppwork", "worker", str(run_dir)],
            ranks=plan.world_size,
            log=run_dir / TORCHRUN_LOG,
            limit_s=limit_s,
            threads=plan.threads_per_rank,
            freeze_s=plan.freeze_s,
            watch=look,
        )
    except StopAsked:
        return STOPPED


def _if_full(run_dir: Path, failure: RunFailed) -> RunFailed:
    """Name a full disk first: it explains most of what the ranks could still say."""
    free = free_mb(run_dir)
    if free >= FULL_MB:
        return failure
    return failure.below(
        f"The disk of {run_dir} is full ({free:.1f} MB free); some records are missing.",
        f"`df -h {run_dir}`; remove old runs there, or give --out another disk",
    )


def _remove_halves(run_dir: Path) -> None:
    """Remove what killed ranks were writing: no reader takes it for a whole file, people might."""
    for path in run_dir.iterdir():
        if _HALF.fullmatch(path.name) and path.is_file():
            path.unlink()


def _verify(plan: Plan, run_dir: Path, deadline: float) -> RunFailed | None:
    """Compute the same in one process and put the largest difference into the summary."""
    command = [sys.executable, "-m", "ppwork", "reference", str(run_dir)]
    log_path = run_dir / "reference.log"
    with (
        log_path.open("wb") as log,
        running(command, child_environment(plan.threads_per_rank), log) as process,
    ):
        try:
            code = process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = PAST_LIMIT
    if code != 0:
        return RunFailed(
            f"The single-process reference ended with code {code}.\n  log: {log_path}",
            check_first=f"the end of {log_path}",
        )
    found = msgspec.json.decode((run_dir / VERIFY_FILE).read_bytes(), type=dict[str, Any])
    (run_dir / VERIFY_FILE).unlink()
    add_to_summary(run_dir, found)
    allowed = plan.tolerance if plan.mesh_size > 1 else 0.0
    worst = found["max_abs_diff"]
    if worst is None or worst > allowed:  # JSON has no infinity: shapes or counts differed
        return RunFailed(
            f"The pipeline's output differed from the single-process reference by {worst}; "
            f"{allowed:g} is allowed at mesh size {plan.mesh_size}.",
            check_first=f"{run_dir / SUMMARY_FILE}; do the stages use anything but their context and inputs?",
        )
    (run_dir / OUTPUTS_FILE).unlink()  # kept only for who wants to know why they differ
    return None
