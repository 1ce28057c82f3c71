"""Faults from outside the ranks: signals, a cut cable, a start that cannot work, a taken port (F18 to F21).

Where two hosts cannot be made (``hosts``) a case that wants them says so and is not run.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from ppwork.diagnosis.runs import diagnose
from ppwork.faults.family import START_S, ProcessFamily, await_first_chunk
from ppwork.faults.fault import ENDS, FAILS, SUCCEEDS
from ppwork.faults.hosts import ADDRESSES, CABLE, MiniatureHost, hosts_on_a_switch
from ppwork.launcher.launch import launch
from ppwork.launcher.torchrun import child_environment, running
from ppwork.launcher.warm import Started
from ppwork.plan import Plan
from ppwork.protocol.plan import STORE_VARIABLE
from ppwork.records.run import TORCHRUN_LOG, Run

Outcome = tuple[Run, int, str]
"""A run, when the fault was injected (``time.monotonic_ns``), and how the run ended."""

END_S, HOSTS_END_S = 20.0, 60.0
"""Longest wait for the end of what was stopped, and of a run across two hosts, in seconds."""
USUAL_PORT = 29500
TORCHRUN_SIGNALS = {
    "torchrun-sigint": signal.SIGINT, "torchrun-sigterm": signal.SIGTERM, "torchrun-killed": signal.SIGKILL,
}  # fmt: skip
DELAY_S = 1.0
"""Seconds for which the cable between two hosts is out where it is only to delay."""
PORT = "29577"


def from_outside(name: str, plan: Plan, run_dir: Path, family: ProcessFamily) -> Outcome:
    """Carry out a case from outside.

    Raises:
        PlanError: The run was refused before any rank started.
        TimeoutError, subprocess.TimeoutExpired: The run did not begin, or did not end.
    """
    fault_id, _, case = name.partition("/")
    match name:
        case _ if fault_id == "F18":
            return _stopped(case, plan, run_dir, family)
        case "F19/cut":
            return _across(plan, run_dir)
        case "F19/delayed":
            return _across(plan, run_dir, again_after_s=DELAY_S)
        case "F20/unwritable":
            run_dir.parent.mkdir(parents=True, exist_ok=True)
            run_dir.write_bytes(b"a file where a folder should be")
            return _launched(plan, run_dir / "run")
        case "F21/world-size":
            return _by_hand(plan, run_dir, ranks=plan.world_size - 1)
        case "F21/too-few-gpus":
            return _launched(plan, run_dir)
        case "F21/port-in-use":
            with socket.socket() as taken:
                taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                with contextlib.suppress(OSError):  # then somebody else has it, which is as good
                    taken.bind(("127.0.0.1", USUAL_PORT))
                    taken.listen()
                return _launched(plan, run_dir)
        case "F21/stale-rendezvous":
            return _stale_rendezvous(plan, run_dir, family)
    raise KeyError(name)


def _stopped(case: str, plan: Plan, run_dir: Path, family: ProcessFamily) -> Outcome:
    """Start the command line, wait for its first chunk, and send the signal of the case."""
    options = plan.options
    command = [
        sys.executable, "-P", "-m", "ppwork", "run", "--workload", "synthetic",
        "--stage0-ms", f"{options['encode_ms']},{options['decode_ms']}",
        "--stage1-ms", str(options["stage1_ms"]), "--payload-mb", str(options["payload_mb"]),
        "--mesh-size", str(plan.mesh_size), "--chunks", str(plan.chunks),
        "--depth", str(plan.in_flight_depth), "--backend", "gloo", "--timeout-s", str(plan.timeout_s),
        "--out", str(run_dir),
    ]  # fmt: skip
    null = subprocess.DEVNULL
    with subprocess.Popen(command, stdin=null, stdout=null, stderr=null, start_new_session=True) as launcher:
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
                agent.send_signal(TORCHRUN_SIGNALS[case])
            code = launcher.wait(END_S)
            family.await_end(END_S)
        finally:
            launcher.kill()
    return Run(run_dir, code), at_ns, ENDS if code else SUCCEEDS


def _launched(plan: Plan, run_dir: Path) -> Outcome:
    at_ns = time.monotonic_ns()
    run = launch(plan, out=run_dir, check=False, limit_s=START_S)
    return run, at_ns, SUCCEEDS if run.failure is None else FAILS


def _stale_rendezvous(plan: Plan, run_dir: Path, family: ProcessFamily) -> Outcome:
    """Start ranks by hand twice with one store file; the first time one is killed, so that the file stays."""
    store = run_dir.with_name(run_dir.name + "-store")
    before = run_dir.with_name(run_dir.name + "-before")
    _by_hand(plan.replace(fault="F13/stage0-mid-compute"), before, ranks=plan.world_size, store=store)
    family.await_end(END_S)
    return _by_hand(plan, run_dir, ranks=plan.world_size, store=store)


def _by_hand(plan: Plan, run_dir: Path, *, ranks: int, store: Path | None = None) -> Outcome:
    """Start torchrun as a person would, without our launcher."""
    run_dir.mkdir(parents=True)
    plan.save(run_dir)
    command = [
        sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks),
        "-m", "ppwork", "worker", str(run_dir),
    ]  # fmt: skip
    environment = {**child_environment(plan.threads_per_rank), "GLOO_SOCKET_IFNAME": "lo"}
    environment |= {STORE_VARIABLE: str(store)} if store is not None else {}
    with (run_dir / TORCHRUN_LOG).open("wb") as log, running(command, environment, log) as agent:
        at_ns = time.monotonic_ns()
        code = agent.wait(START_S)
    return _ended(run_dir, at_ns, code)


def _ended(run_dir: Path, at_ns: int, code: int) -> Outcome:
    failure = diagnose(run_dir, code).as_error() if code else None
    return Run(run_dir, code, failure), at_ns, FAILS if code else SUCCEEDS


def _across(plan: Plan, run_dir: Path, *, again_after_s: float | None = None) -> Outcome:
    """Run rank 0 on one host and the mesh on the other, and pull the cable once the first chunk is out.

    Args:
        plan: Of the run.
        run_dir: Its folder, which both hosts share.
        again_after_s: Seconds until the cable is put in again: TCP sends again what was lost.
    """
    run_dir.mkdir(parents=True)
    plan.save(run_dir)
    with hosts_on_a_switch() as hosts, contextlib.ExitStack() as stack:
        agents = [_agent(stack, plan, run_dir, host, node) for node, host in enumerate(hosts)]
        await_first_chunk(run_dir, agents[0])
        at_ns = time.monotonic_ns()
        hosts[0].cut()
        if again_after_s is not None:
            time.sleep(again_after_s)
            hosts[0].mend()
        codes = [agent.wait(HOSTS_END_S) for agent in agents]
    return _ended(run_dir, at_ns, max(codes, key=abs))


def _agent(stack: contextlib.ExitStack, plan: Plan, run_dir: Path, host: MiniatureHost, node: int) -> Started:
    """Start one host's torchrun, as one would on two machines."""
    command = [
        sys.executable, "-m", "torch.distributed.run",
        "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", str(plan.mesh_size if node else 1),
        "--master-addr", ADDRESSES[0], "--master-port", PORT,
        "-m", "ppwork", "worker", str(run_dir),
    ]  # fmt: skip
    environment = {**child_environment(plan.threads_per_rank), "GLOO_SOCKET_IFNAME": CABLE}
    environment.pop(STORE_VARIABLE, None)
    log = stack.enter_context((run_dir / (f"torchrun-{node}.log" if node else TORCHRUN_LOG)).open("wb"))
    return stack.enter_context(running(host.command(command), environment, log))
