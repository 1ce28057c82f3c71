"""A run over two hosts as people start it: one plain torchrun on each, static, and a folder on each.

Hosts are namespaces (``ppwork.faults.hosts``); a test that takes them is skipped, with the reason, where they
cannot be made. Both see their folder at one path, and nothing of the other's.
"""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from waiting import wait_for

from ppwork.faults.hosts import ADDRESSES, CABLE, NAMES, MiniatureHost, hosts_on_a_switch, why_no_hosts
from ppwork.launcher.torchrun import STATIC_PORT, Started, running
from ppwork.protocol.plan import STORE_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

no_hosts = why_no_hosts(clocks=True)
needs_hosts = pytest.mark.skipif(bool(no_hosts), reason=f"no hosts in miniature here: {no_hosts}")
"""Marks a test that is over two hosts."""


@dataclass
class Job:
    """A job over two hosts.

    Attributes:
        local: The path at which each host sees its own folder.
        folders: Those folders, as this machine sees them.
        logs: What each torchrun prints.
    """

    hosts: tuple[MiniatureHost, ...]
    agents: list[Started]
    local: Path
    folders: list[Path]
    logs: list[Path]

    def wait(self, deadline_s: float = 100.0) -> list[int]:
        wait_for(lambda: all(agent.poll() is not None for agent in self.agents), deadline_s)
        return [agent.poll() for agent in self.agents]


@contextlib.contextmanager
def job_over(
    tmp_path: Path, *program: object, ranks: tuple[int, int] = (1, 2), ahead_s: int = 0
) -> Iterator[Job]:
    """Start a program over two hosts, named hosta and hostb; ``{local}`` in it is the folder of each.

    Args:
        tmp_path: For all of it.
        program: What stands behind torchrun's options.
        ranks: How many on each.
        ahead_s: Seconds by which the second host's clock is ahead.
    """
    local = tmp_path / "local"
    local.mkdir()
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": CABLE, "PYTHONUNBUFFERED": "1"}
    for name in ("OMP_NUM_THREADS", STORE_VARIABLE):  # as in a shell: the first is torchrun's to set
        environment.pop(name, None)
    folders = [tmp_path / name for name in NAMES]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    with contextlib.ExitStack() as stack:
        places = {folder.name: {folder: local} for folder in folders}
        hosts = stack.enter_context(hosts_on_a_switch(folders=places, ahead_s={NAMES[1]: ahead_s}))
        job = Job(hosts, [], local, folders, [])
        for node, (host, count) in enumerate(zip(hosts, ranks, strict=True)):
            log = tmp_path / f"{host.name}.log"
            command = [
                sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", str(node),
                "--nproc-per-node", str(count), "--master-addr", ADDRESSES[0],
                "--master-port", str(STATIC_PORT),
                *(str(word).replace("{local}", str(local)) for word in program),
            ]  # fmt: skip
            file = stack.enter_context(log.open("wb", buffering=0))
            job.agents.append(stack.enter_context(running(host.command(command), environment, file)))
            job.logs.append(log)
        yield job
