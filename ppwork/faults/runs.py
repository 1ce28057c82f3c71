"""Runs of the catalogue's cases on real ranks, each with its report. No torch here.

A case in a rank or in the plan goes through ``launch``; one from outside has a program in ``outside``.
"""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import msgspec

from ppwork.diagnosis.logs import tail
from ppwork.diagnosis.report import Report
from ppwork.diagnosis.runs import diagnose
from ppwork.errors import PlanError, PPWorkError
from ppwork.faults.catalogue import FAULTS, fault_of, small_plan, with_fault
from ppwork.faults.facts import FACTS, injection
from ppwork.faults.family import ProcessFamily
from ppwork.faults.fault import CPU, FAILS, GPU, OUTSIDE, REFUSED, SUCCEEDS, Case, Fault
from ppwork.faults.hosts import why_no_hosts
from ppwork.faults.outside import from_outside
from ppwork.faults.report import FaultReport, Notice, judged, not_run
from ppwork.launcher.checks import check_environment, choose_backend, count_gpus
from ppwork.launcher.launch import launch
from ppwork.plan import Plan
from ppwork.records.failure import read_records
from ppwork.records.run import TORCHRUN_LOG, Run

LIMIT_S = 60.0
"""Seconds; a case that has not ended by then is stopped and was not caught."""


def names_of(wanted: Iterable[str], case: str = "") -> list[str]:
    """Return the full names of the cases of these faults, ``F07/leader``; of all faults if none is wanted.

    Raises:
        PlanError: There is no such fault or case.
    """
    faults = [fault_of(f"{name}/{case}" if case else name) for name in wanted]
    if case:
        return [f"{fault.id}/{named.name}" for fault, named in faults]
    chosen = [fault for fault, _ in faults] or FAULTS
    return [f"{fault.id}/{each.name}" for fault in chosen for each in fault.cases]


def run_case(
    name: str, *, mesh_size: int = 2, backend: str = "gloo", keep: Path | None = None
) -> FaultReport:
    """Run one case and report.

    Args:
        name: ``F13/follower-mid-compute``; without a case the fault's first one.
        mesh_size: Ranks of stage 1.
        backend: ``gloo``, or ``nccl``: all ranks then share one GPU.
        keep: Folder for the run's own folder; ``None`` throws it away.

    Returns:
        What the run showed, with the verdict; ``needs GPU`` or ``needs two hosts`` if it cannot run here.

    Raises:
        PlanError: There is no such case, this mesh has no such rank, the backend has no GPU, a variable of
            the environment is refused, ``keep`` has a folder of the case, or the run was refused as the case
            does not expect; nothing has started.

    Blocks:
        About 5 s of start-up and the case's own bound; at most a minute.
    """
    fault, case = fault_of(name)
    if not _can_run(case):
        return not_run(fault.id, case)
    asked = small_plan(mesh_size, backend)
    check_environment(asked)
    choose_backend(asked)  # a case may want to be refused for its own backend, and for no other reason
    plan = _plan_of(fault, case, asked)
    with contextlib.ExitStack() as stack:
        parent = keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ppwork-fault-")))
        # Absolute, as in the arguments of the ranks, by which their processes are known.
        run_dir = parent.absolute() / f"{fault.id}-{case.name}"
        if run_dir.exists():
            what = f"The folder {run_dir} of this case exists; nothing was overwritten."
            raise PlanError(what, check_first="--keep: a new folder")
        report, run = _observed(fault, case, plan, run_dir)
        facts = {fact: FACTS[fact](run) for fact in case.expect.facts if run is not None}
    report = msgspec.structs.replace(report, facts=facts, run_dir=str(run.run_dir) if keep and run else "")
    return judged(report, case, plan)


def _can_run(case: Case) -> bool:
    if case.needs == GPU:
        return count_gpus() > 0  # one is enough for all ranks: nothing is timed on it
    return case.needs == CPU or not why_no_hosts()


def _plan_of(fault: Fault, case: Case, plan: Plan) -> Plan:
    if case.place != OUTSIDE:
        return with_fault(plan, f"{fault.id}/{case.name}")
    return plan.replace(**{**case.plan, "options": {**plan.options, **case.plan.get("options", {})}})


def _observed(fault: Fault, case: Case, plan: Plan, run_dir: Path) -> tuple[FaultReport, Run | None]:
    start = time.monotonic()
    report = FaultReport(fault=fault.id, case=case.name, injected=case.injected)
    run, at_ns, outcome = None, None, ""
    failure: PPWorkError | None = None
    with ProcessFamily(run_dir) as family:
        try:
            if case.place == OUTSIDE:
                run, at_ns, outcome = from_outside(f"{fault.id}/{case.name}", plan, run_dir, family)
            else:
                run = launch(plan, out=run_dir, check=False, limit_s=LIMIT_S)
                outcome = SUCCEEDS if run.failure is None else FAILS
            failure = run.failure
        except PlanError as error:
            if case.expect.outcome != REFUSED:
                raise  # it is about what was asked for: nothing was injected, and there is no verdict
            outcome, failure = REFUSED, error
        except (TimeoutError, subprocess.TimeoutExpired):
            pass  # it has no outcome, and the processes that are left are found next
        remaining = family.end()
    if run is not None and (injected := injection(run.entries_by_rank)) is not None:
        rank, instant = injected
        at_ns = instant.at_ns
        report = msgspec.structs.replace(report, injected_rank=rank, injected_chunk=instant.chunk_index)
    report = msgspec.structs.replace(
        report,
        outcome=outcome,
        injected_ns=at_ns,
        noticed=_noticed(run_dir, plan, at_ns),
        exit_codes=Report.of(tail(run_dir / TORCHRUN_LOG)).codes,
        gone_s=_seconds(at_ns, family.ranks_gone_ns),
        all_gone_s=_seconds(at_ns, family.gone_ns),
        took_s=time.monotonic() - start,
        left=remaining,
    )
    return _with_failure(report, run, failure), run


def _seconds(from_ns: int | None, to_ns: int | None) -> float | None:
    return (to_ns - from_ns) / 1e9 if from_ns is not None and to_ns is not None else None


def _with_failure(report: FaultReport, run: Run | None, failure: PPWorkError | None) -> FaultReport:
    if failure is None:
        return report
    cause = diagnose(run.run_dir, run.exit_code).cause if run is not None and run.exit_code else None
    return msgspec.structs.replace(
        report,
        named=failure.where.get("rank"),
        error_type=cause.error_type if cause is not None else type(failure).__name__,
        what=failure.what,
        where=failure.where,
        source=cause.source if cause is not None else "",
    )


def _noticed(run_dir: Path, plan: Plan, at_ns: int | None) -> Notice | None:
    if at_ns is None or not run_dir.is_dir():
        return None
    records = [record for record in read_records(run_dir, plan.world_size) if record.at_ns >= at_ns]
    first = min(records, key=lambda record: record.at_ns, default=None)
    return Notice(first.rank, first.error_type, (first.at_ns - at_ns) / 1e9) if first else None
