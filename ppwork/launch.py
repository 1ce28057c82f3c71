"""Starts the ranks of a plan through torchrun, follows them, and always cleans up. No torch here.

Clean-up has three layers: the ranks hold a lifeline to this process and a death signal to torchrun
(``lifeline``); we end torchrun politely and wait; and what is left is killed by recorded process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil

from ppwork.checks import new_run_dir, resolve
from ppwork.errors import RunFailed
from ppwork.failure import write_whole
from ppwork.lifeline import LIFELINE_VARIABLE
from ppwork.plan import Plan
from ppwork.run import OUTPUTS_FILE, SUMMARY_FILE, TORCHRUN_LOG, VERIFY_FILE, Run, diagnose
from ppwork.timeline import Entry, parse_entries, span_file

POLL_S = 0.05
POLITE_S = 3.0
"""How long torchrun gets to stop its ranks before we do."""
DEFAULT_LIMIT_S = 3600.0

Progress = Callable[[Entry], None]
"""Called on the caller's thread with each new span or instant of rank 0."""


def launch(
    plan: Plan,
    *,
    out: Path | str | None = None,
    check: bool = True,
    started: Callable[[Plan, Path], None] | None = None,
    progress: Progress | None = None,
    limit_s: float = DEFAULT_LIMIT_S,
) -> Run:
    """Run a plan on ``plan.world_size`` processes of this machine and wait for the end.

    Args:
        plan: What to run; ``chunks`` and ``backend`` may be left open.
        out: Run folder, new or empty; ``None`` makes one under ``runs/``.
        check: Raise if the run fails; else the failure is in ``Run.failure``.
        started: Called once with the resolved plan and the run folder, before the ranks start.
        progress: Gets rank 0's spans and instants while they come.
        limit_s: Hard limit on the whole run, in seconds; the ranks' own bounds are in the plan.

    Returns:
        The finished run; its summary, logs and spans are in ``run_dir``.

    Raises:
        PlanError: The input cannot work; no rank was started and nothing overwritten.
        RunFailed: A rank failed (only with ``check``); says which was first, its error and its log.
        KeyboardInterrupt: As pressed; no rank is left.

    Blocks:
        Until all ranks have ended; at most ``limit_s`` plus a few seconds of clean-up.
    """
    plan = resolve(plan)
    run_dir = new_run_dir(Path(out) if out is not None else None)
    write_whole(run_dir / Plan.FILE_NAME, msgspec.json.format(plan.to_json(), indent=2))
    if started is not None:
        started(plan, run_dir)
    deadline = time.monotonic() + limit_s
    exit_code = _run_ranks(plan, run_dir, deadline, progress)
    failure: RunFailed | None = None
    if exit_code != 0:
        failure = diagnose(run_dir, plan.topology, exit_code)
    elif plan.verify:
        failure = _verify(plan, run_dir, deadline)
    if failure is not None and check:
        raise failure
    return Run(run_dir, exit_code, failure)


def torchrun_command(plan: Plan, run_dir: Path, scratch: Path) -> list[str]:
    """Return the command line that starts the ranks; the rendezvous is a file, so nothing listens for it."""
    return [
        sys.executable, "-m", "torch.distributed.run",
        "--nnodes", "1", "--nproc-per-node", str(plan.world_size),
        "--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file",
        "--rdzv-endpoint", str(scratch / "rendezvous"), "--rdzv-id", uuid.uuid4().hex,
        "--max-restarts", "0", "--monitor-interval", "0.1",
        "-m", "ppwork", "worker", str(run_dir),
    ]  # fmt: skip


def rank_environment(plan: Plan, scratch: Path) -> dict[str, str]:
    """Return the environment of torchrun and its ranks: loopback only, one store file, one lifeline."""
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    return {
        **loopback,
        **child_environment(plan),
        "PPWORK_STORE": str(scratch / "store"),
        # Without this torchrun opens a store on all addresses.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def child_environment(plan: Plan) -> dict[str, str]:
    """Return what ranks and the reference have in common: our environment, the threads, the lifeline."""
    threads = str(plan.threads_per_rank)
    return {**os.environ, "OMP_NUM_THREADS": threads, "PYTHONUNBUFFERED": "1", LIFELINE_VARIABLE: "1"}


def _run_ranks(plan: Plan, run_dir: Path, deadline: float, progress: Progress | None) -> int:
    scratch = Path(tempfile.mkdtemp(prefix="ppwork-"))
    try:
        command, environment = torchrun_command(plan, run_dir, scratch), rank_environment(plan, scratch)
        with (run_dir / TORCHRUN_LOG).open("wb") as log, _running(command, environment, log) as agent:
            tail = _Tail(span_file(run_dir, 0), progress)
            while agent.poll() is None:
                tail.read()
                if time.monotonic() > deadline:
                    log.write(b"ppwork: the run passed its limit and was stopped\n")
                    return 124
                with contextlib.suppress(subprocess.TimeoutExpired):
                    agent.wait(POLL_S)
            tail.read()
            return agent.returncode
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@contextlib.contextmanager
def _running(command: list[str], environment: dict[str, str], log: Any) -> Iterator[subprocess.Popen[bytes]]:  # noqa: ANN401
    """Start a process whose standard input is a lifeline; on the way out nothing of it is left."""
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=log, stderr=subprocess.STDOUT
    )
    try:
        yield process
    finally:
        _stop(process)


def _stop(process: subprocess.Popen[bytes]) -> None:
    # Recorded before anything dies: an orphan's parent is not there to be asked. A psutil process is a pid
    # and its start time, so a pid that was used again is never hit.
    family = _family(process.pid) if process.poll() is None else []
    if process.stdin is not None:
        with contextlib.suppress(OSError):
            process.stdin.close()
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLITE_S)
    _, alive = psutil.wait_procs(family, timeout=POLITE_S)
    for member in alive:
        with contextlib.suppress(psutil.NoSuchProcess):
            member.kill()
    psutil.wait_procs(alive, timeout=POLITE_S)
    process.wait(POLITE_S)


def _family(pid: int) -> list[psutil.Process]:
    try:
        agent = psutil.Process(pid)
        return [agent, *agent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


class _Tail:
    """Reads a growing span file and hands on its new entries."""

    def __init__(self, path: Path, progress: Progress | None) -> None:
        self._path = path
        self._progress = progress
        self._offset = 0

    def read(self) -> None:
        if self._progress is None or not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._offset)
            entries, used = parse_entries(file.read())
        self._offset += used
        for entry in entries:
            self._progress(entry)


def _verify(plan: Plan, run_dir: Path, deadline: float) -> RunFailed | None:
    """Compute the same in one process and put the largest difference into the summary."""
    command = [sys.executable, "-m", "ppwork", "reference", str(run_dir)]
    log_path = run_dir / "reference.log"
    with log_path.open("wb") as log, _running(command, child_environment(plan), log) as process:
        try:
            code = process.wait(max(1.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            code = 124
    if code != 0:
        return RunFailed(
            f"The single-process reference ended with code {code}.\n  log: {log_path}",
            check_first=f"the end of {log_path}",
        )
    found = msgspec.json.decode((run_dir / VERIFY_FILE).read_bytes(), type=dict[str, Any])
    (run_dir / VERIFY_FILE).unlink()
    path = run_dir / SUMMARY_FILE
    summary = {**msgspec.json.decode(path.read_bytes(), type=dict[str, Any]), **found}
    write_whole(path, msgspec.json.format(msgspec.json.encode(summary), indent=2))
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
