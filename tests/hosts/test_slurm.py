"""A plain torchrun on each node of a real Slurm: to its end, and cancelled in mid-run (N13)."""

from __future__ import annotations

import contextlib
import subprocess
import sys
import time

import host_processes
import psutil
import pytest
from disturbed import PLAN
from slurm import needs_slurm, slurm_of_two
from waiting import wait_for

import ppwork as pp
from ppwork.faults.hosts import CABLE, NAMES
from ppwork.launcher.torchrun import STATIC_PORT, running
from ppwork.records.clocks import clock_names, host_of
from ppwork.records.spans import read_entries

pytestmark = [pytest.mark.multiproc, pytest.mark.cold, pytest.mark.timeout(400), needs_slurm]

# One torchrun for each node, as in docs/torchruns.md; $SLURM_NODEID is the node's rank.
TASK = (
    "exec {python} -m torch.distributed.run --nnodes 2 --node-rank $SLURM_NODEID "
    "--nproc-per-node $((SLURM_NODEID + 1)) --master-addr {head} --master-port {port} -m ppwork worker {run}"
)


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with slurm_of_two(tmp_path_factory.mktemp("queue")) as slurm:
        slurm.environment |= {"GLOO_SOCKET_IFNAME": CABLE, "PYTHONUNBUFFERED": "1"}
        slurm.environment.pop("OMP_NUM_THREADS", None)
        yield slurm


@contextlib.contextmanager
def worker(slurm, tmp_path, plan):
    """The worker under srun, one torchrun a node; both see one run folder."""
    run = tmp_path / "run"
    run.mkdir()
    plan.save(run)
    task = TASK.format(python=sys.executable, head=NAMES[0], port=STATIC_PORT, run=run)
    command = slurm.command("srun", "--nodes=2", "--ntasks-per-node=1", "bash", "-c", task)
    log = tmp_path / "srun.log"
    with log.open("wb", buffering=0) as file, running(command, slurm.environment, file) as srun:
        yield srun, run, log


def members(slurm, run) -> list[psutil.Process]:
    """The job's processes on both nodes: whoever names the run folder."""
    found = []
    for process in (p for host in slurm.hosts for p in host_processes.processes(host)):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(str(run) in word for word in process.cmdline()):
                found.append(process)
    return found


def test_a_worker_under_srun_runs_to_its_end_with_ranks_on_both_nodes(slurm, tmp_path):
    with worker(slurm, tmp_path, PLAN.replace(chunks=6)) as (srun, run, log):
        assert srun.wait(200) == 0, log.read_text()[-3000:]
    wait_for(lambda: slurm.queue() == "")
    names = clock_names(pp.open(run).entries_by_rank)
    assert {rank: host_of(name) for rank, name in names.items()} == {0: "hosta", 1: "hostb", 2: "hostb"}
    assert "Nothing failed" in pp.diagnose(run).text


def test_n13_scancel_ends_every_rank_on_both_nodes_and_nobody_writes_a_record(slurm, tmp_path):
    """Slurm sends SIGTERM to each process of the step: nothing is left, and nobody says why."""
    with worker(slurm, tmp_path, PLAN) as (srun, run, _log):
        wait_for(lambda: any(entry.name == "emit" for entry in read_entries(run, 0)), 200)
        assert len(members(slurm, run)) >= 5  # two torchruns and three ranks
        start = time.monotonic()
        slurm.ask("scancel", "--state=RUNNING", "--user=root")
        wait_for(lambda: not members(slurm, run), 20)
        gone_s = time.monotonic() - start
        with contextlib.suppress(subprocess.TimeoutExpired):
            srun.wait(20)
        assert srun.poll()
    wait_for(lambda: slurm.queue() == "", 60)
    assert gone_s < 7.0  # KillWait is 5 s here
    assert not list(run.glob("failure-rank*.json"))
