"""Ranks never outlive whoever started them: the launcher, torchrun, or a user's Ctrl-C."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from conftest import END_S, wait_for

pytestmark = pytest.mark.multiproc

SCRIPT = """
import sys, ppwork as pp
plan = pp.Plan(mesh_size=2, chunks=2000, backend="gloo", stage0="toy_stages:Counter",
               stage1="toy_stages:Slow", options={"step_s": 0.05})
pp.launch(plan, out=sys.argv[1])
"""
GONE_S = 2.0


@pytest.fixture
def job(tmp_path):
    """A launcher in its own process whose ranks are in mid-run, and everybody in it by recorded process."""
    run_dir = tmp_path / "run"
    launcher = subprocess.Popen([sys.executable, "-c", SCRIPT, str(run_dir)], stderr=subprocess.DEVNULL)
    emitted = run_dir / "spans-rank0.jsonl"
    wait_for(lambda: emitted.exists() and '"emit"' in emitted.read_text(), END_S)
    family = psutil.Process(launcher.pid).children(recursive=True)
    agent = next(p for p in family if "torch.distributed.run" in " ".join(p.cmdline()))
    ranks = [p for p in family if "worker" in p.cmdline() and p != agent]
    assert len(ranks) == 3
    yield launcher, agent, ranks
    for process in [agent, *ranks]:
        if process.is_running():
            process.kill()
    launcher.kill()
    launcher.wait()


def all_gone(processes, deadline_s: float) -> list[psutil.Process]:
    _, alive = psutil.wait_procs(processes, timeout=deadline_s)
    return [p for p in alive if p.is_running() and p.status() != psutil.STATUS_ZOMBIE]


def test_launcher_killed_hard_leaves_no_rank(job):
    """F18: the lifeline's end of file."""
    launcher, agent, ranks = job
    launcher.kill()
    launcher.wait()
    assert all_gone(ranks, GONE_S) == []
    assert all_gone([agent], END_S) == []


def test_torchrun_killed_hard_leaves_no_rank_and_the_launcher_fails(job):
    """F18: the parent-death signal, as the launcher and its lifeline live on."""
    launcher, agent, ranks = job
    agent.kill()
    assert all_gone(ranks, GONE_S) == []
    assert launcher.wait(END_S) == 1


@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_launcher_takes_its_ranks_with_it(job, sent):
    """F18: Ctrl-C runs the clean-up; SIGTERM ends the launcher at once, and the lifeline the rest."""
    launcher, agent, ranks = job
    start = time.monotonic()
    launcher.send_signal(sent)
    launcher.wait(END_S)
    assert all_gone([agent, *ranks], END_S) == []
    assert time.monotonic() - start < 8.0


def test_a_rank_killed_hard_ends_the_job_and_is_named(job):
    """F13."""
    launcher, _, ranks = job
    os.kill(ranks[0].pid, signal.SIGKILL)
    assert all_gone(ranks, GONE_S) == []
    assert launcher.wait(END_S) == 1
