"""A Slurm of two nodes on two hosts in miniature, from Debian's packages; `make hosts` installs them.

No munge: its ``auth/none`` is enough where nobody else is on the network. Skipped, with the reason, where a
program of it is missing.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
from hosts import no_hosts
from waiting import wait_for

from ppwork.faults.hosts import NAMES, hosts_on_a_switch
from ppwork.launcher.torchrun import running

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from ppwork.faults.hosts import MiniatureHost

PACKAGES = ("slurmctld", "slurmd", "slurm-client")
_missing = [name for name in ("slurmctld", "slurmd", "srun", "scancel") if shutil.which(name) is None]
no_slurm = no_hosts or (
    f"there is no {_missing[0]} (apt-get install {' '.join(PACKAGES)})" if _missing else ""
)
needs_slurm = pytest.mark.skipif(bool(no_slurm), reason=f"no Slurm of two nodes here: {no_slurm}")
"""Marks a test that submits jobs."""
_CONFIGURATION = """\
ClusterName=lab
SlurmctldHost=hosta
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/linear
MpiDefault=none
ReturnToService=2
KillWait=5
NodeName={nodes} CPUs=2
PartitionName=all Nodes={nodes} Default=YES MaxTime=10 State=UP
"""
# Its cgroup plugin is loaded in any case, and the default one looks for what a container may not have.
_CGROUP = "CgroupPlugin=cgroup/v1\n"
START_S = 30.0


@dataclass
class Slurm:
    """A queue with two nodes.

    Attributes:
        hosts: Its nodes; commands are given on the first.
        environment: Of its commands.
    """

    hosts: tuple[MiniatureHost, ...]
    environment: dict[str, str]

    def command(self, *words: str, folder: Path | None = None) -> list[str]:
        """Return the command line that runs a command of Slurm's on the first host."""
        return self.hosts[0].command(words, folder=folder)

    def ask(self, *words: str) -> str:
        """Run a short command to its end and return what it prints."""
        done = subprocess.run(
            self.command(*words),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=START_S,
            check=True,
        )
        return done.stdout.strip()

    def queue(self) -> str:
        """Return the states of all jobs; empty: there is none."""
        return self.ask("squeue", "--noheader", "--format", "%T")


@contextlib.contextmanager
def slurm_of_two(tmp_path: Path, **more: str) -> Iterator[Slurm]:
    """Bring up a controller on the first host and a node on each; on the way out nothing is left.

    Args:
        tmp_path: For its files.
        more: Lines of its configuration, in place of those above.
    """
    folder = tmp_path / "slurm"
    (folder / "state").mkdir(parents=True)
    for name in NAMES:
        (folder / f"spool-{name}").mkdir()
    text = _CONFIGURATION.format(folder=folder, nodes=",".join(NAMES))
    (folder / "slurm.conf").write_text(_changed(text, more))
    (folder / "cgroup.conf").write_text(_CGROUP)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    daemons = ["slurmctld", "-D"], ["slurmd", "-D", "-N", NAMES[0]], ["slurmd", "-D", "-N", NAMES[1]]
    with contextlib.ExitStack() as stack:
        hosts = stack.enter_context(hosts_on_a_switch())
        for number, (host, command) in enumerate(zip((hosts[0], *hosts), daemons, strict=True)):
            log = stack.enter_context((folder / f"daemon-{number}.log").open("wb"))
            stack.enter_context(running(host.command(command), environment, log))
        slurm = Slurm(hosts, environment)

        def up() -> bool:
            with contextlib.suppress(subprocess.CalledProcessError):
                return slurm.ask("sinfo", "--noheader", "--format", "%T %D") == "idle 2"
            return False

        try:
            wait_for(up, START_S)
        except AssertionError:
            logs = "\n".join(file.read_text()[-1500:] for file in sorted(folder.glob("daemon-*.log")))
            raise AssertionError(f"no two idle nodes within {START_S} s:\n{logs}") from None
        yield slurm


def _changed(text: str, more: Mapping[str, str]) -> str:
    kept = [line for line in text.splitlines() if line.partition("=")[0] not in more]
    # Nodes and partitions come last in Slurm's own order.
    return "\n".join([*kept[:-2], *(f"{key}={value}" for key, value in more.items()), *kept[-2:], ""])
