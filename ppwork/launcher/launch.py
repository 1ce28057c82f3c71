"""The launch of a plan: check it, start and follow its ranks, and return its figures or its failure.

No torch here.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import re
import sys
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

import msgspec

from ppwork.diagnosis.report import death
from ppwork.diagnosis.runs import diagnose
from ppwork.errors import RecordError, RunFailed, listed, text_of
from ppwork.launcher.checks import check_limit, resolve
from ppwork.launcher.nodes.gather import MOST_WHOLE
from ppwork.launcher.nodes.host_session import HostSession
from ppwork.launcher.nodes.node import FOLDER
from ppwork.launcher.nodes.places import Places
from ppwork.launcher.registry import LEFT_OVER, registered, registry
from ppwork.launcher.torchrun import child_environment, followed, running, torchrun
from ppwork.launcher.view import NoView, Queued, StopAsked, View
from ppwork.plan import Plan
from ppwork.process import PAST_LIMIT, STOPPED, TORCHRUN_STOPPED
from ppwork.protocol.topology import LEADER_RANK, STAGE0_RANK
from ppwork.records.files import read_json
from ppwork.records.folder import free_mb, refuse_taken, run_folder
from ppwork.records.hosts import HostsRecord
from ppwork.records.notes import came_with_a_cut, queues_of
from ppwork.records.run import (
    EARLY_SOURCE,
    FAILED_AT_END,
    OUTPUTS_FILE,
    REFERENCE_LOG,
    RETURNED_DIFFERS,
    RETURNED_FILE,
    SUMMARY_FILE,
    TORCHRUN_LOG,
    VERIFY_FILE,
    WRONG,
    LaunchEnd,
    Run,
    by_how_much,
    mesh_notes,
)
from ppwork.records.spans import CHECK, READ, TORCHRUN, Entry, Span, span_file
from ppwork.records.tail import SpanTail, last_lines
from ppwork.timeline.chunks import aligned
from ppwork.timeline.measures import mean_mesh_idle_ms
from ppwork.timeline.streams import hidden, streams

DEFAULT_LIMIT_S = 3600.0
FULL_MB = 1.0
"""A disk with less than this at the end of a failed run is reported as full."""
_HALF = re.compile(r"\..+\.\d+")
"""Names that ``files.temporary`` gives to files that are not complete yet."""

Progress = Callable[[Entry], None]
"""Called on the caller's thread with each new span or instant of rank 0."""


def launch(
    plan: Plan,
    out: Path | str | None = None,
    *,
    check: bool = True,
    started: Callable[[Plan, Path], None] | None = None,
    progress: Progress | None = None,
    limit_s: float = DEFAULT_LIMIT_S,
    view: Callable[[Plan, Path], View] = NoView,
    on: Places | None = None,
    queued: Queued | None = None,
    beside: Collection[str] = (),
) -> Run:
    """Run a plan on ``plan.world_size`` processes of this machine, or of others, and wait for the end.

    Args:
        plan: The run's plan, with its fault if it has one (``faults.with_fault``); ``chunks`` and ``backend``
            may be left open.
        out: Run folder, new or empty; ``None`` makes one under ``runs/``.
        check: Raise if the run fails; else the failure is in ``Run.failure``.
        started: Called once with the resolved plan and the run folder, before the ranks start.
        progress: Gets rank 0's spans and instants as they come; an exception from it ends the run.
        limit_s: Hard limit on the whole run, in seconds; the ranks' own bounds are in the plan.
        view: Makes the view of the running run, given the resolved plan and the run folder.
        on: Hosts that run the ranks; without it this machine runs them all, over its loopback.
        queued: Gets a queue's reports while the run waits for its hosts, before there is a folder or a view.
        beside: Names of files that may be in the run folder beforehand.

    Returns:
        The finished run; its summary, logs and spans are in ``run_dir``.

    Raises:
        PlanError: The input cannot work; no rank was started and nothing overwritten.
        UnavailableError: A host, Slurm or the list of runs is not ready; no rank was started.
        RunFailed: A rank or a host failed, or the view was asked to stop the run (only with ``check``); names
            the first failure, its error and its log. A run stopped in the queue always raises: it has no
            folder.
        KeyboardInterrupt: The user pressed Ctrl-C; no rank is left.

    Blocks:
        Until all ranks have ended; at most ``limit_s`` plus a few seconds of clean-up.
    """
    check_limit(limit_s)
    steps = _Steps()
    if out is not None:
        with contextlib.suppress(OSError):  # `run_folder` reports it in more detail
            refuse_taken(Path(out), beside=beside)  # before the stages are imported, which takes seconds
    with contextlib.ExitStack() as stack:
        plan = resolve(plan, elsewhere=on is not None)
        registry()  # may refuse, before the run folder is used
        run_dir = stack.enter_context(run_folder(out, beside))
        hosts = (
            stack.enter_context(HostSession(on, plan.world_size, plan.freeze_s)) if on is not None else None
        )
        if hosts is not None:
            hosts.greet(queued, run_dir)
            plan = plan.replace(backend=hosts.backend_of(plan))
            clip = plan.options.get("input") if plan.is_video else None
            hosts.look(run_dir.name, run_dir, [clip] if clip else [])
            hosts.meet()
        plan.save(run_dir)
        if started is not None:
            started(plan, run_dir)
        deadline = time.monotonic() + limit_s
        shown = view(plan, run_dir)
        steps.end(CHECK)
        try:
            exit_code = _run_ranks(plan, run_dir, limit_s, progress, shown, hosts)
            if exit_code and LaunchEnd.load(run_dir) is not None:  # `ppwork stop` has written it
                exit_code = STOPPED
            stack.close()
            steps.end(TORCHRUN)
            finished = Run(run_dir, exit_code)
            try:
                failure = _failure(finished, deadline, shown.look)
            except StopAsked:
                finished = Run(run_dir, STOPPED)
                failure = _failure(finished, deadline, shown.look)
            finished = dataclasses.replace(finished, failure=failure)
            steps.end(READ)
        except BaseException as error:
            shown.end(_noted(Run(run_dir, STOPPED, _ended_by(error)), steps))
            raise
    shown.end(_noted(finished, steps))
    if finished.failure is not None and check:
        raise finished.failure
    return finished


class _Steps:
    """The steps of this launcher, one after another, as spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self._since_ns = time.monotonic_ns()

    def end(self, name: str) -> None:
        """Record that a step has ended and the next one begins."""
        now_ns = time.monotonic_ns()
        self.spans.append(Span(name, "launcher", self._since_ns, now_ns))
        self._since_ns = now_ns


def _ended_by(error: BaseException) -> RunFailed:
    """Return how a run ended in whose launcher something raised; its ranks are gone by then."""
    if isinstance(error, KeyboardInterrupt | SystemExit):
        return RunFailed("The run was interrupted: its launcher was asked to end.")
    return RunFailed(
        f"The launcher ended the run, because it raised {text_of(error)}",
        check_first="the launcher's traceback: a `progress` and a view are called on its thread, too",
    )


def _noted(run: Run, steps: _Steps) -> Run:
    """Record how a run ended, if its folder exists and has room; remove half-written files."""
    what, check_first = (run.failure.what, run.failure.check_first) if run.failure is not None else ("", "")
    if run.failure is not None:
        _drop_halves(run.run_dir)
    with contextlib.suppress(OSError):
        code, spans = run.exit_code or 0, tuple(steps.spans)
        LaunchEnd(exit_code=code, what=what, check_first=check_first, steps=spans).save(run.run_dir)
    return run


def _drop_halves(run_dir: Path) -> None:
    """Remove files that killed ranks were writing: no reader takes one for complete, but people might."""
    with contextlib.suppress(OSError):
        for path in run_dir.iterdir():
            if _HALF.fullmatch(path.name) and path.is_file():
                path.unlink()


def _failure(run: Run, deadline: float, look: Callable[[], None]) -> RunFailed | None:
    """Return the first failure of a run that has ended; if there is none, complete its summary.

    Raises:
        StopAsked: The user asked to stop the verification.
    """
    if not (run.run_dir / Plan.FILE_NAME).exists():
        return RunFailed(
            f"The run folder {run.run_dir} was moved or removed, or its plan was, before the run had ended.",
            check_first="who did it? what it has elsewhere: `ppwork diagnose` with that folder",
        )
    if run.exit_code == 0 and (run.run_dir / SUMMARY_FILE).exists():
        try:
            run.complete({**mesh_figures(run), **_hosts_of(run)})
            return (_verify(run, deadline, look) if run.plan.verify else None) or _odd(run)
        except RecordError as error:
            return _if_full(run.run_dir, RunFailed(error.what, check_first=error.check_first))
    if run.exit_code == STOPPED:
        by_command = LaunchEnd.load(run.run_dir)
        what = by_command.what if by_command is not None else "The run was stopped by its Stop button."
        failure = RunFailed(f"{what} No rank is left.\n  folder: {run.run_dir}", check_first=LEFT_OVER)
    else:
        failure = _if_full(run.run_dir, diagnose(run.run_dir, run.exit_code).as_error())
    return failure


def _odd(run: Run) -> RunFailed | None:
    """Return the failure of a run that came to its end: what always is one, or odd and strict."""
    dropped = len(run.summary.get("dropped_chunks", ()))
    emitted = run.summary.get("chunks", run.plan.chunks or 0)
    is_empty, is_short = emitted + dropped == 0, emitted + dropped < (run.plan.chunks or 0)
    wrong = next((WRONG[key] for key in WRONG if run.summary.get(key)), EARLY_SOURCE if is_short else "")
    if not (run.plan.strict or is_empty or wrong):
        return None
    if not (found := diagnose(run.run_dir, run.exit_code)).is_odd:
        return None
    check = "what encode returned for chunk 0" if is_empty else wrong
    how = "" if check else ", as its plan is strict"
    check = check or "without `strict` it ends well, and says the same"
    return RunFailed(f"{FAILED_AT_END}{how}.\n{found.story}", check_first=check)


def mesh_figures(run: Run) -> dict[str, Any]:
    """Return facts on an ended run that rank 0 lacks: the mesh's idle time, queues, streams."""
    first, last = map(run.summary.get, ("from_chunk", "to_chunk"))
    by_rank = run.entries_by_rank.items()
    figures: dict[str, Any] = {
        "mesh_idle_ms": mean_mesh_idle_ms(run.entries_by_rank[LEADER_RANK], first, last),
        "queues": [{"rank": rank, **queue} for rank, entries in by_rank for queue in queues_of(entries)],
    }
    figures |= mesh_notes(run.entries_by_rank)
    if on_cuda := [dataclasses.asdict(stream) for stream in streams(aligned(run.entries_by_rank))]:
        was = hidden(run.entries_by_rank).values()
        figures |= {"streams": on_cuda, "hidden_transfers": f"{sum(was)} of {len(was)}"}
    return figures


def _hosts_of(run: Run) -> dict[str, Any]:
    """Return which hosts ran which ranks, for the summary; empty for a run on this machine alone."""
    known = HostsRecord.load(run.run_dir)
    return {} if known is None else {"hosts": msgspec.to_builtins(known.hosts)}


def _run_ranks(
    plan: Plan,
    run_dir: Path,
    limit_s: float,
    progress: Progress | None,
    view: View,
    hosts: HostSession | None,
) -> int:
    tail = SpanTail(span_file(run_dir, STAGE0_RANK))

    def look() -> None:
        view.look()
        if progress is not None:
            for entry in tail.read():
                progress(entry)

    try:
        if hosts is not None:
            with registered(run_dir, hosts.pid):
                return hosts.run(plan, ["-m", "ppwork", "worker", FOLDER], run_dir, limit_s, look)
        return torchrun(
            ["-m", "ppwork", "one-process" if plan.one_process else "worker", str(run_dir)],
            ranks=1 if plan.one_process else plan.world_size,
            log=run_dir / TORCHRUN_LOG,
            limit_s=limit_s,
            threads=plan.threads_per_rank,
            freeze_s=plan.freeze_s,
            watch=look,
            warm=plan.backend == "gloo",
        )
    except StopAsked:
        return STOPPED


def _if_full(run_dir: Path, failure: RunFailed) -> RunFailed:
    """Report a full disk first: it explains most other errors of the ranks."""
    free = free_mb(run_dir)
    if free < FULL_MB:
        failure = failure.below(
            f"The disk of {run_dir} is full ({free:.1f} MB free); some records are missing.",
            f"`df -h {run_dir}`; remove old runs there, or give --out another disk",
        )
    known = HostsRecord.load(run_dir)
    for host in known.hosts if known is not None else ():
        if host.folder and host.free_mb is not None and host.free_mb < FULL_MB:
            failure = failure.below(
                f"The disk of {host} is full ({host.free_mb:.1f} MB free in {host.folder}).",
                f"`df -h` there; TMPDIR of {host.name} names another disk",
            )
    return failure


def _verify(run: Run, deadline: float, look: Callable[[], None]) -> RunFailed | None:
    """Compute the same in one process and put the largest difference into the summary.

    Raises:
        StopAsked: The view, or `ppwork stop`, ended the computation.
        RecordError: The computation's result does not read.
    """
    plan, run_dir = run.plan, run.run_dir
    if not (run_dir / OUTPUTS_FILE).exists() and (hosts := HostsRecord.load(run_dir)) is not None:
        stayed = [f"{host.name}:{path}" for host in hosts.hosts for path in host.stayed]
        return RunFailed(
            f"The outputs did not come here, and are not verified: {listed(stayed)}",
            check_first=f"more than {MOST_WHOLE >> 20} MiB stay there: fewer chunks, or a shared folder",
        )
    command = [sys.executable, "-m", "ppwork", "reference", str(run_dir)]
    environment = child_environment(plan.threads_per_rank)
    log_path = run_dir / REFERENCE_LOG
    with (
        log_path.open("wb") as log,
        running(command, environment, log, warm=plan.backend == "gloo") as process,
        registered(run_dir, process.pid),
    ):
        # Processes that its stages start are not ranks: it need not leave when they end.
        limit_s = max(1.0, deadline - time.monotonic())
        code = followed(process, log, limit_s, plan.freeze_s, look, leave_s=math.inf)
    if code != 0:
        if LaunchEnd.load(run_dir) is not None:
            raise StopAsked
        ours = {PAST_LIMIT: "did not end within the run's limit", TORCHRUN_STOPPED: "was stopped (SIGSTOP)"}
        last_words = "".join(f": {line.strip()}" for line in last_lines(log_path, 1) if code > 0)
        return RunFailed(
            f"The single-process reference {ours.get(code) or death(code)}{last_words}\n  log: {log_path}",
            check_first=f"the end of {log_path}",
        )
    figures = read_json(run_dir / VERIFY_FILE, dict[str, Any])
    if figures is None:
        raise RecordError(
            f"The single-process reference ended, and its figures, {run_dir / VERIFY_FILE}, do not read.",
            check_first=f"{log_path}; `df -h {run_dir}`: was the disk full? did anything else write there?",
        )
    (run_dir / VERIFY_FILE).unlink()
    told = ("first_different", "first_values", "most_different", "dtype")
    first, values, most, dtype = map(figures.pop, told)
    if not (apart := figures[RETURNED_DIFFERS]):
        del figures[RETURNED_DIFFERS]
    run.complete(figures)
    allowed, worst = plan.allowed_difference, figures["max_abs_diff"]
    check = "has each mesh rank its own share, and its cache reset at a cut?"
    if worst is None or worst > allowed:
        endless = "by NaN or infinities" if values else "in number or shape"
        by = by_how_much(worst, endless)
        how = "in the number of chunks" if first is None else f"{by}, first in chunk {first}"
        how += f" ({values})" if values else ""
        how += f" and most in chunk {most}" if first is not None and most != first else ""
        if first is not None and came_with_a_cut(run.entries(STAGE0_RANK), first):
            how += f"; chunk {first} came with a cut, and those before it agree"
            check = "does `reset_cache` reset all of the cache, on each mesh rank?"
        elif first == 0:
            check = "has each mesh rank its own share of the weights?"
        what = f"{FAILED_AT_END}: its output ({dtype}) differed from the single-process reference {how}; "
        what += f"{allowed:g} is allowed at mesh size {plan.mesh_size}."
    elif apart:
        what = f"{FAILED_AT_END}: outputs are equal, and what the mesh returned is not: {apart}, from the "
        what += f"single-process reference; {allowed:g} of the largest value is allowed at mesh size "
        what += f"{plan.mesh_size}."
    else:
        for name in (RETURNED_FILE, *(() if plan.keep_outputs else (OUTPUTS_FILE,))):
            (run_dir / name).unlink()  # they are equal, and were kept only for this
        return None
    return RunFailed(
        what,
        check_first=f"{check} do the stages use anything but their context and inputs? "
        f"{run_dir / SUMMARY_FILE} has the numbers; "
        "is a buffer filled anew while it is on its way? --check-buffers -1 looks at every byte; sums "
        "round, those of bfloat16 by far more: --tolerance (a plan's `tolerance`)",
    )
