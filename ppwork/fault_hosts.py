"""Two hosts on one machine: network namespaces with a cable between them, and a run across it (F19).

Needs root and the ``ip`` command of Linux; elsewhere a case that wants two hosts says so and is not run.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppwork.diagnosis import diagnose
from ppwork.environment import STORE_VARIABLE
from ppwork.fault import FAILS, SUCCEEDS
from ppwork.fault_watch import Came, await_first_chunk
from ppwork.plan import Plan
from ppwork.run import TORCHRUN_LOG, Run
from ppwork.torchrun import child_environment, running

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ADDRESSES = ("10.77.77.1", "10.77.77.2")
PORT = "29577"
CABLE = "ppwork"
"""Name of the interface at each end."""
END_S = 60.0


def can_have_two_hosts() -> bool:
    """Say whether this process may make network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    return subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode == 0


@dataclass(frozen=True)
class Hosts:
    """The names of two namespaces with a cable between them."""

    names: tuple[str, str]

    def cable(self, state: str) -> None:
        """Pull the cable at the first host (``down``), or put it in again (``up``)."""
        _ip("-n", self.names[0], "link", "set", CABLE, state)


@contextlib.contextmanager
def two_hosts() -> Iterator[Hosts]:
    """Make two hosts; on the way out they are gone, and what ran in them has no network."""
    hosts = Hosts((f"ppwork-{os.getpid()}-a", f"ppwork-{os.getpid()}-b"))
    with contextlib.ExitStack() as stack:
        for name in hosts.names:
            _ip("netns", "add", name)
            stack.callback(_ip, "netns", "del", name)
        first, second = hosts.names
        _ip("link", "add", CABLE, "netns", first, "type", "veth", "peer", "name", CABLE, "netns", second)
        for name, address in zip(hosts.names, ADDRESSES, strict=True):
            _ip("-n", name, "addr", "add", f"{address}/24", "dev", CABLE)
            for link in ("lo", CABLE):
                _ip("-n", name, "link", "set", link, "up")
        yield hosts


def across(plan: Plan, run_dir: Path, *, again_after_s: float | None = None) -> Came:
    """Run rank 0 on one host and the mesh on the other, and pull the cable once the first chunk is out.

    Args:
        plan: What to run.
        run_dir: Its folder, which both hosts share.
        again_after_s: When the cable is put in again, in seconds: TCP sends again what was lost.
    """
    run_dir.mkdir(parents=True)
    (run_dir / Plan.FILE_NAME).write_bytes(plan.to_json())
    with two_hosts() as hosts, contextlib.ExitStack() as stack:
        agents = [_agent(stack, plan, run_dir, name, node) for node, name in enumerate(hosts.names)]
        await_first_chunk(run_dir, agents[0])
        at_ns = time.monotonic_ns()
        hosts.cable("down")
        if again_after_s is not None:
            time.sleep(again_after_s)
            hosts.cable("up")
        codes = [agent.wait(END_S) for agent in agents]
    code = max(codes, key=abs)
    failure = diagnose(run_dir, code).failed() if code else None
    return Run(run_dir, code, failure), at_ns, FAILS if code else SUCCEEDS


def _agent(
    stack: contextlib.ExitStack, plan: Plan, run_dir: Path, host: str, node: int
) -> subprocess.Popen[bytes]:
    """Start one host's torchrun, as one would on two machines."""
    command = [
        "ip", "netns", "exec", host,
        sys.executable, "-m", "torch.distributed.run",
        "--nnodes", "2", "--node-rank", str(node), "--nproc-per-node", str(plan.mesh_size if node else 1),
        "--master-addr", ADDRESSES[0], "--master-port", PORT,
        "-m", "ppwork", "worker", str(run_dir),
    ]  # fmt: skip
    environment = {**child_environment(plan.threads_per_rank), "GLOO_SOCKET_IFNAME": CABLE}
    environment.pop(STORE_VARIABLE, None)
    log = stack.enter_context((run_dir / (f"host{node}.log" if node else TORCHRUN_LOG)).open("wb"))
    return stack.enter_context(running(command, environment, log))


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True)
