"""A launch over real ssh, whose pipes run over the cable: to its end, refused, cut, switched off.

The launcher is on a host of its own, `desk`; the pipe to each other host is a connection of OpenSSH.
"""

from __future__ import annotations

import contextlib
import logging
import subprocess
import sys
import time

import host_processes
import psutil
import pytest
from over_hosts import ENDLESS, FREEZE_S, LATE_S
from sshd import needs_sshd, sshd_on
from waiting import wait_for

import ppwork as pp
from ppwork.faults.hosts import MiniatureHost, hosts_on_a_switch
from ppwork.process import HOST_LOST
from ppwork.records.hosts import HostsRecord
from ppwork.records.run import LaunchEnd, Run
from ppwork.records.spans import read_entries

pytestmark = [pytest.mark.multiproc, pytest.mark.cold, pytest.mark.timeout(300), needs_sshd]

WHOLE = pp.Plan(mesh_size=2, chunks=6, in_flight_depth=3, backend="gloo", verify=True)
LAUNCH = """\
import sys
import ppwork as pp
on = pp.Hosts("hosta", sys.argv[3], ranks=(1, 2), use_shared=False)
pp.launch(pp.Plan.load(sys.argv[1]), on=on, out=sys.argv[2])
"""
log = logging.getLogger("N")


@pytest.fixture
def hosts(tmp_path):
    with hosts_on_a_switch(("desk", "hosta", "hostb")) as hosts:
        yield hosts


@contextlib.contextmanager
def launched(hosts, tmp_path, plan, second="hostb"):
    """Launch a plan from the desk, over ssh to both others; yield the launcher and the run's folder."""
    run_dir = tmp_path / "run"
    (tmp_path / "plan").mkdir()
    plan.save(tmp_path / "plan")
    with sshd_on(hosts[1:], tmp_path) as environment:
        words = [sys.executable, "-c", LAUNCH, tmp_path / "plan", run_dir, second]
        with (tmp_path / "said").open("wb") as said:
            launcher = subprocess.Popen(hosts[0].command([*map(str, words)]), env=environment, stderr=said)
        try:
            yield launcher, run_dir
        finally:
            launcher.kill()
            launcher.wait()


def left_on(host) -> list[psutil.Process]:
    """What is left of us: sshd itself keeps a session whose other end it does not hear."""
    found = []
    for process in host_processes.processes(host):
        with contextlib.suppress(psutil.NoSuchProcess):
            if "sshd" not in " ".join([process.name(), *process.cmdline()]):
                found.append(process)
    return found


def test_a_clip_over_ssh_is_that_of_one_process(hosts, tmp_path):
    with launched(hosts, tmp_path, WHOLE) as (launcher, run_dir):
        assert launcher.wait(200) == 0, (tmp_path / "said").read_text()
        assert not any(left_on(host) for host in hosts)
    run = Run(run_dir, 0)
    assert run.summary["max_abs_diff"] <= WHOLE.allowed_difference
    assert [(host["name"], host["ranks"]) for host in run.summary["hosts"]] == [
        ("hosta", [0]), ("hostb", [1, 2]),
    ]  # fmt: skip
    assert not any(list((tmp_path / f"tmp-{name}").glob("ppwork-run-*")) for name in ("hosta", "hostb"))


def test_a_host_whose_key_nobody_knows_is_refused_in_the_words_of_ssh(hosts, tmp_path):
    """By its address: the name of no known host."""
    with launched(hosts, tmp_path, ENDLESS, second=hosts[2].address) as (launcher, run_dir):
        launcher.wait(60)
        said = (tmp_path / "said").read_text()
        assert "Host key verification failed" in said
        assert "Nothing was started" in said
        assert not any(left_on(host) for host in hosts)
    assert not run_dir.exists()


@pytest.mark.parametrize("lose", [MiniatureHost.cut, host_processes.power_off], ids=["cut", "power_off"])
def test_a_host_that_is_lost_with_its_pipe_is_named_and_nothing_of_us_is_left(hosts, tmp_path, lose):
    """No goodbye gets out: ssh itself would be silent for 15 s, its peer for as long as TCP tries."""
    with launched(hosts, tmp_path, ENDLESS) as (_, run_dir):
        wait_for(lambda: sum(entry.name == "emit" for entry in read_entries(run_dir, 0)) > 3, 100)
        lose(hosts[2])
        start_s = time.monotonic()
        end = wait_for(lambda: LaunchEnd.load(run_dir), 60)
        after_s = time.monotonic() - start_s
        wait_for(lambda: not any(left_on(host) for host in hosts), 20)
        empty_s = time.monotonic() - start_s
    log.info(
        "ssh, %s: %.1f s: %s; empty after %.1f s", lose.__name__, after_s, end.what.splitlines()[0], empty_s
    )
    assert max(after_s, empty_s) < FREEZE_S + 1.0 + LATE_S
    assert end.exit_code == HOST_LOST
    assert "Host hostb (ranks 1 and 2) was not heard for" in end.what
    assert "hostb (ranks 1 and 2) was not heard" in pp.diagnose(run_dir).text
    lost = HostsRecord.load(run_dir).hosts[1]
    assert lost.folder.startswith(str(tmp_path / "tmp-hostb"))  # what its ranks wrote is there
