"""``ppwork submit`` and ``attach`` on a real Slurm of two nodes: nothing of the run is outside of it."""

from __future__ import annotations

import contextlib
import json
import logging
import subprocess
import sys
import time

import host_processes
import psutil
import pytest
from slurm import needs_slurm, slurm_of_two
from waiting import wait_for

from ppwork.diagnosis.runs import diagnose
from ppwork.process import HOST_LOST, STOPPED
from ppwork.records.run import LaunchEnd
from ppwork.records.spans import read_entries

pytestmark = [pytest.mark.multiproc, pytest.mark.cold, pytest.mark.timeout(400), needs_slurm]

FREEZE_S = 2.0
ENDLESS = (
    "--workload=synthetic --stage0-ms=10 --stage1-ms=10 --payload-mb=0.1 --chunks=100000 --depth=2 "
    f"--backend=gloo --freeze-s={FREEZE_S}"
).split()
WAITING = """\
import ppwork as pp
from ppwork.launcher.launch import launch
from ppwork.launcher.view import StopAsked

def stop(words):
    print(words, flush=True)
    if "Resources" in words:
        raise StopAsked

launch(pp.Plan(mesh_size=2, chunks=3, backend="gloo"), on=pp.Slurm(2), queued=stop)
"""
log = logging.getLogger("N")


@pytest.fixture(scope="module")
def slurm(tmp_path_factory):
    with slurm_of_two(tmp_path_factory.mktemp("queue")) as slurm:
        yield slurm


def ppwork(slurm, *words, code=0) -> str:
    """Run a command of ours on the first host, as on a login node."""
    done = subprocess.run(
        slurm.command(sys.executable, "-m", "ppwork", *map(str, words)),
        env=slurm.environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout if code == 0 else done.stderr


def submitted(slurm, run_dir, *options) -> str:
    said = ppwork(slurm, "submit", "--on=slurm:2", "--ranks=1,2", *options, "--out", run_dir, "--json")
    return json.loads(said)["job"]


def running(slurm, run_dir) -> list[psutil.Process]:
    """Wait until chunks come out; return the job's processes on both nodes."""
    wait_for(lambda: run_dir.exists() and [e for e in read_entries(run_dir, 0) if e.name == "emit"], 100)
    found = []
    for process in (each for host in slurm.hosts for each in host_processes.processes(host)):
        with contextlib.suppress(psutil.NoSuchProcess):
            if any(word == "ppwork" for word in process.cmdline()):
                found.append(process)
    assert len(found) >= 5  # the launcher, two nodes and three ranks, as far as they name us
    return found


def test_a_submitted_clip_is_that_of_one_process_and_the_next_one_waits_its_turn(slurm, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    number = submitted(slurm, first, "--chunks=6", "--depth=3", "--verify")
    behind = submitted(slurm, second, *ENDLESS)
    runs = {run["run_dir"]: run for run in json.loads(ppwork(slurm, "ps", "--json")) if "job" in run}
    assert runs[str(first)]["job"] == number
    assert runs[str(second)]["state"].startswith("PENDING (")
    assert "Requeue=0" in slurm.ask("scontrol", "show", "job", number)

    assert f"cancelled job {behind}" in ppwork(slurm, "stop", second)
    summary = json.loads(ppwork(slurm, "attach", first, "--json"))
    assert summary["max_abs_diff"] <= 1e-4
    hosts = [(host["name"], host["ranks"]) for host in summary["hosts"]]
    assert hosts == [("hosta", [0]), ("hostb", [1, 2])]
    assert "max_abs_diff" in ppwork(slurm, "attach", first)  # one that has ended is read back
    assert "(CANCELLED)" in ppwork(slurm, "attach", second, code=1)
    wait_for(lambda: slurm.queue() == "", 60)


def test_a_launch_that_waits_says_why_and_leaves_the_queue_when_it_is_stopped(slurm, tmp_path):
    """An srun that is killed leaves its job there, and that would get nodes which nobody uses."""
    submitted(slurm, tmp_path / "run", *ENDLESS)
    wait_for(lambda: slurm.queue() == "RUNNING", 60)
    done = subprocess.run(
        slurm.command(sys.executable, "-c", WAITING),
        env=slurm.environment, capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert "PENDING (Resources), 1 of 1 in the queue" in done.stdout, done.stderr
    assert "stopped while it waited in the queue. Nothing was started" in done.stderr
    wait_for(lambda: slurm.queue() == "RUNNING", 20)

    ask = "import ppwork as pp; pp.launch(pp.Plan(mesh_size=2, backend='gloo'), on=pp.Slurm(2), out='{}')"
    waiting = subprocess.Popen(
        slurm.command(sys.executable, "-c", ask.format(tmp_path / "second")),
        env=slurm.environment, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def listed() -> list[str]:
        runs = json.loads(ppwork(slurm, "ps", "--json"))
        return [run["run_dir"] for run in runs if run.get("waits") == "waits in the queue"]

    wait_for(lambda: listed() == [str(tmp_path / "second")], 60)
    wait_for(lambda: slurm.queue().split() == ["PENDING", "RUNNING"], 20)
    start_s = time.monotonic()
    assert ppwork(slurm, "stop", tmp_path / "second") == f"stopped {tmp_path / 'second'}\n"
    assert "Nothing was started" in waiting.communicate(timeout=30)[1]
    log.info("stopped in the queue: %.1f s", time.monotonic() - start_s)
    wait_for(lambda: slurm.queue() == "RUNNING", 20)
    assert not (tmp_path / "second").exists()
    ppwork(slurm, "stop", tmp_path / "run")
    wait_for(lambda: slurm.queue() == "", 60)


def test_n13_a_job_that_is_cancelled_leaves_nothing_but_what_it_had_recorded(slurm, tmp_path):
    run_dir = tmp_path / "run"
    number = submitted(slurm, run_dir, *ENDLESS)
    processes = running(slurm, run_dir)
    start_s = time.monotonic()
    slurm.ask("scancel", number)
    _, left = psutil.wait_procs(processes, timeout=20)
    log.info("N13: %.1f s", time.monotonic() - start_s)
    assert not left
    said = ppwork(slurm, "attach", run_dir, code=1)
    assert "The run was interrupted: its launcher was asked to end" in said
    assert LaunchEnd.load(run_dir).exit_code == STOPPED
    assert [entry for entry in read_entries(run_dir, 2) if entry.name == "generate"]
    wait_for(lambda: slurm.queue() == "", 60)


def test_n20_a_node_that_is_lost_is_named_and_the_job_does_not_begin_anew(slurm, tmp_path):
    """Slurm itself waits for such a node for SlurmdTimeout, five minutes, with the job RUNNING."""
    run_dir = tmp_path / "run"
    submitted(slurm, run_dir, *ENDLESS)
    running(slurm, run_dir)
    slurm.hosts[1].cut()
    start_s = time.monotonic()
    try:
        end = wait_for(lambda: LaunchEnd.load(run_dir), 60)
        log.info("N20: %.1f s: %s", time.monotonic() - start_s, end.what.splitlines()[0])
        wait_for(lambda: slurm.queue() in ("", "COMPLETING"), 30)
        log.info("N20: the job was over after %.1f s", time.monotonic() - start_s)
    finally:
        slurm.hosts[1].mend()
    assert end.exit_code == HOST_LOST
    assert "hostb" in diagnose(run_dir).cause.what
    assert "hostb" in ppwork(slurm, "attach", run_dir, code=1)
    wait_for(lambda: slurm.queue() == "", 60)
