"""Starts programs under torchrun on this machine, and always cleans up. No torch here.

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
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import psutil

from ppwork.agent_watch import AgentWatch, ask_for_stacks
from ppwork.environment import LIFELINE_VARIABLE, STORE_VARIABLE
from ppwork.exit_codes import PAST_LIMIT, TORCHRUN_STOPPED
from ppwork.processes import listed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

HELD_TORCHRUN = """\
from ppwork import collector, lifeline
lifeline.hold()
with collector.importing():
    from torch.distributed.run import main
main()
"""
"""torchrun on our lifeline: it takes seconds to start ranks, and must not if we are gone by then."""
POLL_S = 0.05
POLITE_S = 1.0
"""How long torchrun and its ranks get to leave before we kill them."""
KILL_S = 3.0
"""How long we wait for what was killed."""


def torchrun(
    program: Sequence[str],
    *,
    ranks: int,
    log: Path,
    limit_s: float,
    threads: int = 1,
    freeze_s: float = 5.0,
    watch: Callable[[], None] | None = None,
) -> int:
    """Run a program as this many ranks and wait for its end; meanwhile ``ppwork ps`` lists it.

    Once one rank has died badly the others get a second to write their records; then they are killed.

    Args:
        program: What torchrun shall start: a script and its arguments, or ``-m`` and a module. It should call
            ``lifeline.hold_if_asked()`` first thing, so that it never outlives us.
        ranks: Number of processes.
        log: Gets what torchrun and the ranks print; its folder is the run's name on the list.
        limit_s: Hard limit, in seconds.
        threads: ``OMP_NUM_THREADS`` of each rank.
        freeze_s: So long, in seconds, may torchrun be stopped while we run; then the program is ended.
        watch: Called about every 50 ms meanwhile, and once after the end.

    Returns:
        torchrun's exit code, negative for the signal that ended it; ``PAST_LIMIT`` if the limit passed;
        ``TORCHRUN_STOPPED``.

    Raises:
        PlanError: The list of runs cannot be kept; nothing is left running.

    Blocks:
        Until all ranks have ended; at most ``limit_s`` plus a few seconds of clean-up.
    """
    deadline, look = time.monotonic() + limit_s, watch or (lambda: None)
    scratch = Path(tempfile.mkdtemp(prefix="ppwork-"))
    try:
        command = [*_torchrun_command(ranks, scratch), *program]
        with (
            log.open("wb", buffering=0) as file,
            running(command, _rank_environment(threads, scratch), file) as agent,
            listed(log.parent, agent.pid),
        ):
            known = psutil.Process(agent.pid)
            seen = AgentWatch(known, log, freeze_s=freeze_s, say=lambda line: _say(file, line))
            while agent.poll() is None:
                look()
                if time.monotonic() > deadline:
                    ask_for_stacks(known)
                    _say(file, "ppwork: the run passed its limit and was stopped")
                    return PAST_LIMIT
                if seen.look():
                    _say(
                        file, f"ppwork: torchrun was stopped (SIGSTOP) for {freeze_s:g} s; the run was ended"
                    )
                    return TORCHRUN_STOPPED
                with contextlib.suppress(subprocess.TimeoutExpired):
                    agent.wait(POLL_S)
            look()
            return agent.returncode
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _say(log: BinaryIO, line: str) -> None:
    with contextlib.suppress(OSError):  # a full disk must not stop the clean-up
        log.write(f"{line}\n".encode())


def _torchrun_command(ranks: int, scratch: Path) -> list[str]:
    """Return torchrun's part of the command line; the rendezvous is a file, so nothing listens for it."""
    return [
        sys.executable, "-c", HELD_TORCHRUN,
        "--nnodes", "1", "--nproc-per-node", str(ranks),
        "--rdzv-backend", "c10d", "--rdzv-conf", "store_type=file",
        "--rdzv-endpoint", str(scratch / "rendezvous"), "--rdzv-id", uuid.uuid4().hex,
        "--max-restarts", "0", "--monitor-interval", "0.1",
        # Without this it leaves a folder of its own behind, in each run. A program may name another one.
        "--log-dir", str(scratch / "logs"),
    ]  # fmt: skip


def _rank_environment(threads: int, scratch: Path) -> dict[str, str]:
    """Return the environment of torchrun and its ranks: loopback only, one store file, one lifeline."""
    loopback = {"GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo"}
    level = os.environ.get("LOGLEVEL", "")
    return {
        **loopback,
        **child_environment(threads),
        # ``agent_watch`` reads torchrun's warnings.
        "LOGLEVEL": level if level in ("DEBUG", "INFO") else "WARNING",
        STORE_VARIABLE: str(scratch / "store"),
        # Without this torchrun opens a store on all addresses.
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
    }


def child_environment(threads: int) -> dict[str, str]:
    """Return what every process of ours has: our environment, its number of threads, the lifeline."""
    return {**os.environ, "OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1", LIFELINE_VARIABLE: "1"}


@contextlib.contextmanager
def running(
    command: list[str], environment: dict[str, str], log: BinaryIO
) -> Iterator[subprocess.Popen[bytes]]:
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
    try:
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
        if process.poll() is None:
            process.terminate()
        psutil.wait_procs(family, timeout=POLITE_S)
    finally:  # also after a second, impatient Ctrl-C
        for member in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.kill()
        psutil.wait_procs(family, timeout=KILL_S)
        process.wait(KILL_S)


def _family(pid: int) -> list[psutil.Process]:
    try:
        agent = psutil.Process(pid)
        return [agent, *agent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []
