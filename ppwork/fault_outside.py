"""Faults from outside the ranks: signals, a bad start, a folder or a port that is taken (F18, F20, F21)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from ppwork.diagnosis import diagnose
from ppwork.fault import ENDS, FAILS, SUCCEEDS
from ppwork.fault_hosts import across
from ppwork.fault_watch import START_S, Came, await_first_chunk
from ppwork.launch import launch
from ppwork.plan import Plan
from ppwork.run import TORCHRUN_LOG, Run
from ppwork.torchrun import child_environment, running

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from ppwork.fault_watch import Family

END_S = 20.0
"""Longest wait for the end of what was stopped."""
USUAL_PORT = 29500
DELAY_S = 1.0
"""How long the cable between two hosts is out where it is only to delay."""


def from_outside(name: str, plan: Plan, run_dir: Path, family: Family) -> Came:
    """Carry out a case from outside.

    Raises:
        PlanError: The run was refused before any rank started.
        TimeoutError, subprocess.TimeoutExpired: The run did not begin, or did not end.
    """
    fault_id, _, case = name.partition("/")
    if fault_id == "F18":
        return _stopped(case, plan, run_dir, family)
    programs: dict[str, Callable[[Plan, Path, Family], Came]] = {
        "F19/cut": _across,
        "F19/delayed": _across_late,
        "F20/unwritable": _unwritable,
        "F21/world-size": _wrong_world_size,
        "F21/too-few-gpus": _launched,
        "F21/port-in-use": _port_in_use,
        "F21/stale-rendezvous": _stale_rendezvous,
    }
    return programs[name](plan, run_dir, family)


def _stopped(case: str, plan: Plan, run_dir: Path, family: Family) -> Came:
    """Start the command line, wait for its first chunk, and send the signal of the case."""
    options = plan.options
    command = [
        sys.executable, "-m", "ppwork", "run", "--workload", "synthetic",
        "--stage0-ms", f"{options['encode_ms']},{options['decode_ms']}",
        "--stage1-ms", str(options["stage1_ms"]), "--payload-mb", str(options["payload_mb"]),
        "--mesh-size", str(plan.mesh_size), "--chunks", str(plan.chunks),
        "--depth", str(plan.in_flight_depth), "--backend", "gloo", "--timeout-s", str(plan.timeout_s),
        "--out", str(run_dir),
    ]  # fmt: skip
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    ) as launcher:
        try:
            await_first_chunk(run_dir, launcher)
            agent = family.torchrun
            at_ns = time.monotonic_ns()
            if case == "ctrl-c":
                # As a terminal does: the launcher and torchrun, which are in one group; ranks have their own.
                os.killpg(launcher.pid, signal.SIGINT)
            elif case == "sigterm":
                launcher.terminate()
            elif case == "launcher-killed":
                launcher.kill()
            elif agent is not None:
                agent.send_signal(
                    {"torchrun-sigint": signal.SIGINT, "torchrun-sigterm": signal.SIGTERM}.get(
                        case, signal.SIGKILL
                    )
                )
            code = launcher.wait(END_S)
            family.await_end(END_S)
        finally:
            launcher.kill()
    return Run(run_dir, code), at_ns, ENDS if code else SUCCEEDS


def _across(plan: Plan, run_dir: Path, _: Family) -> Came:
    return across(plan, run_dir)


def _across_late(plan: Plan, run_dir: Path, _: Family) -> Came:
    return across(plan, run_dir, again_after_s=DELAY_S)


def _launched(plan: Plan, run_dir: Path, _: Family) -> Came:
    at_ns = time.monotonic_ns()
    run = launch(plan, out=run_dir, check=False, limit_s=START_S)
    return run, at_ns, SUCCEEDS if run.failure is None else FAILS


def _unwritable(plan: Plan, run_dir: Path, family: Family) -> Came:
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    run_dir.write_bytes(b"a file where a folder should be")
    return _launched(plan, run_dir / "run", family)


def _port_in_use(plan: Plan, run_dir: Path, family: Family) -> Came:
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with contextlib.suppress(OSError):  # then somebody else has it, which is as good
            taken.bind(("127.0.0.1", USUAL_PORT))
            taken.listen()
        return _launched(plan, run_dir, family)


def _wrong_world_size(plan: Plan, run_dir: Path, _: Family) -> Came:
    return _by_hand(plan, run_dir, ranks=plan.world_size - 1)


def _stale_rendezvous(plan: Plan, run_dir: Path, family: Family) -> Came:
    """Start ranks by hand twice with one store file; the first time one is killed, so that the file stays."""
    store = run_dir.with_name(run_dir.name + "-store")
    before = run_dir.with_name(run_dir.name + "-before")
    _by_hand(plan.replace(fault="F13/stage0-mid-compute"), before, ranks=plan.world_size, store=store)
    family.await_end(END_S)
    return _by_hand(plan, run_dir, ranks=plan.world_size, store=store)


def _by_hand(plan: Plan, run_dir: Path, *, ranks: int, store: Path | None = None) -> Came:
    """Start torchrun as a person would, without our launcher."""
    run_dir.mkdir(parents=True)
    (run_dir / Plan.FILE_NAME).write_bytes(plan.to_json())
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
        "-m", "ppwork", "worker", str(run_dir),
    ]  # fmt: skip
    environment = {**child_environment(plan.threads_per_rank), "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {"PPWORK_STORE": str(store)} if store is not None else {}
    with (run_dir / TORCHRUN_LOG).open("wb") as log, running(command, environment, log) as agent:
        at_ns = time.monotonic_ns()
        code = agent.wait(START_S)
    failure = diagnose(run_dir, code).failed() if code else None
    return Run(run_dir, code, failure), at_ns, FAILS if code else SUCCEEDS
