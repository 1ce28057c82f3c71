"""Hosts in miniature: what each has of its own, what can be done to one, and that none outlives its test."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys

import host_processes
import psutil
import pytest
from checkout import SUPPORT
from hosts import needs_hosts
from waiting import wait_for

from ppwork.faults.hosts import NAMES, hosts_on_a_switch

pytestmark = [pytest.mark.multiproc, pytest.mark.cold, pytest.mark.timeout(120), needs_hosts]

KILLED = """\
import os, signal, subprocess
from host_processes import freeze, processes
from ppwork.faults.hosts import hosts_on_a_switch
with hosts_on_a_switch() as hosts:
    subprocess.Popen(hosts[1].command(["sleep", "600"]))
    while not processes(hosts[1]):
        pass
    freeze(hosts[1])
    pids = [hosts[1].switch, processes(hosts[1])[0].pid, *(host.pid for host in hosts)]
    print(*pids, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(scope="module")
def hosts():
    with hosts_on_a_switch((*NAMES, "hostc"), ahead_s={NAMES[1]: 5000}) as hosts:
        yield hosts


def said(host, *program):
    done = subprocess.run(host.command(program), capture_output=True, text=True, timeout=20, check=True)
    return done.stdout.strip()


def connects(one, other):
    """Whether a server on the other host is reached by its name."""
    listen = "import socket; s = socket.create_server(('', 7000)); print('up', flush=True); s.accept()"
    ask = f"import socket; socket.create_connection(('{other.name}', 7000), timeout=1)"
    command = other.command([sys.executable, "-c", listen])
    with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
        server.stdout.readline()
        done = subprocess.run(
            one.command([sys.executable, "-c", ask]), capture_output=True, timeout=20, check=False
        )
        for process in host_processes.processes(other):
            with contextlib.suppress(psutil.NoSuchProcess):  # it ends by itself once it was reached
                process.kill()
    return done.returncode == 0


def test_each_has_a_name_processes_and_a_clock_of_its_own(hosts):
    here_s = float(said(hosts[0], "cat", "/proc/uptime").split()[0])
    there_s = float(said(hosts[1], "cat", "/proc/uptime").split()[0])
    assert 4999.9 < there_s - here_s < 5010  # each is cut to hundredths
    for host in hosts:
        assert said(host, "uname", "-n") == host.name
        assert said(host, "sh", "-c", "ls -d /proc/[0-9]* | wc -l") in {"3", "4", "5"}  # not this machine's


def test_a_cable_and_one_direction_of_it_can_be_lost(hosts):
    a, b, c = hosts
    assert connects(a, b)
    b.cut()
    assert not connects(a, b)
    b.mend()
    wait_for(lambda: connects(a, b))
    c.lose_what_goes_to(a)
    assert not connects(a, c)
    assert connects(b, c)


def test_a_host_can_be_frozen_thawed_and_switched_off():
    with hosts_on_a_switch(NAMES[:1]) as (host,):
        entered = subprocess.Popen(host.command(["sleep", "600"]))
        (process,) = wait_for(lambda: host_processes.processes(host))
        host_processes.freeze(host)
        wait_for(lambda: process.status() == psutil.STATUS_STOPPED)
        host_processes.thaw(host)
        wait_for(lambda: process.status() == psutil.STATUS_SLEEPING)
        host_processes.power_off(host)
        assert entered.wait(10)
        wait_for(lambda: not process.is_running())
        assert host_processes.processes(host) == []


def test_nothing_is_left_of_hosts_whose_maker_is_killed_not_even_what_was_frozen():
    """Nobody cleans up after SIGKILL: each host has to end by itself."""
    command, environment = [sys.executable, "-c", KILLED], {**os.environ, "PYTHONPATH": str(SUPPORT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == -9, done.stderr
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 4
    wait_for(lambda: not any(map(psutil.pid_exists, pids)), 10)
