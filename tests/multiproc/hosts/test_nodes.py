"""``on=``: a node on each host, over a pipe. Two nodes here for most of it, two hosts for the cable."""

from __future__ import annotations

import contextlib
import json
import socket
import time
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch.distributed as dist
from hosts import needs_hosts
from over_hosts import ENDLESS, FREEZE_S, LATE_S, OnceRunning, launcher_of_two_nodes, log
from waiting import descendants, wait_for

import ppwork as pp
from ppwork.diagnosis.runs import diagnose
from ppwork.faults.hosts import ADDRESSES, CABLE, hosts_on_a_switch, places_on
from ppwork.launcher import launch as launching
from ppwork.launcher.nodes import host_session
from ppwork.launcher.processes import is_alive
from ppwork.launcher.registry import own_runs
from ppwork.process import HOST_LOST
from ppwork.records.pulse import read_pulse
from ppwork.records.run import TORCHRUN_LOG
from ppwork.timeline.chunks import aligned, emissions

pytestmark = [pytest.mark.multiproc, pytest.mark.timeout(180)]

END_S = FREEZE_S + LATE_S


def two_nodes(**options) -> pp.Command:
    return pp.Command("", hosts=["here", "there"], same_host=True, **options)


def node(number: int) -> psutil.Process:
    wanted = ["ppwork", "node", str(number)]
    return next(each for each in descendants() if asked(each.cmdline)[-3:] == wanted)


def asked(question) -> list:
    """Ask a process that may have ended meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return question()
    return []


def listening() -> set[str]:
    """Return the addresses on which what we started listens."""
    processes = descendants()
    connections = [each for one in processes for each in asked(partial(one.net_connections, "inet"))]
    return {each.laddr.ip for each in connections if each.status == psutil.CONN_LISTEN}


def listening_on_host(process: psutil.Process) -> set[str]:
    """Return the same of all that is on the host of a process, by its own network."""
    found = set()
    for table in ("tcp", "tcp6"):
        lines = Path(f"/proc/{process.pid}/net/{table}").read_text().splitlines()[1:]
        places = [line.split()[1].partition(":")[0] for line in lines if line.split()[3] == "0A"]
        found.update(
            socket.inet_ntoa(bytes.fromhex(each)[::-1]) if table == "tcp" else each for each in places
        )
    return found


def test_a_clip_over_two_nodes_is_that_of_one_process_and_its_records_are_here(tmp_path, monkeypatch):
    """No folder is shared: all that the ranks left came by the pipes. And nobody can join meanwhile."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    made = []
    monkeypatch.setattr(
        launching,
        "HostSession",
        lambda *arguments: made.append(host_session.HostSession(*arguments)) or made[0],
    )
    seen = {}

    def look():
        secret = made[0]._secret
        family = descendants()
        at = made[0].hosts[0].way.to
        store = dist.TCPStore(at.address, at.port, is_master=False)
        keys = store.list_keys()
        seen.update(
            listening=listening(),
            keys=keys,
            shown=[
                process.pid
                for process in family
                if secret in (text := f"{asked(process.cmdline)} {asked(process.environ)}".encode())
                or b"secret=" in text
            ],
            told=[key for key in keys if secret in store.get(key)],
        )

    plan = pp.Plan(mesh_size=2, chunks=6, in_flight_depth=3, backend="gloo", verify=True, keep_outputs=True)
    once = OnceRunning(look)
    run = pp.launch(plan, on=two_nodes(use_shared=False), out=tmp_path / "run", progress=once)
    assert run.summary["max_abs_diff"] <= plan.allowed_difference
    assert sorted(run.outputs) == list(range(6))
    for name in ("denoised.mp4", "side_by_side.png", *(f"rank{rank}.log" for rank in range(3))):
        assert (run.run_dir / name).stat().st_size, name
    assert [read_pulse(run.run_dir, rank).exit_code for rank in range(3)] == [0, 0, 0]
    hosts = run.summary["hosts"]
    assert [(host["name"], host["ranks"]) for host in hosts] == [("here", [0]), ("there", [1, 2])]
    for host in hosts:
        assert host["offset_ns"] == host["error_ns"] == 0  # one clock
    assert sorted(emissions(aligned(run.entries_by_rank))) == list(range(6))
    assert "Nothing failed" in pp.diagnose(run).text
    assert not list(tmp_path.glob("ppwork-run-*"))  # what the hosts had is gone there

    assert once.acted_s
    assert seen["listening"] == {"127.0.0.1"}
    assert any("/parity/" in key for key in seen["keys"])
    assert not [key for key in seen["keys"] if "secret" in key]
    assert (seen["shown"], seen["told"]) == ([], [])


@pytest.mark.parametrize("who", ["node", "torchrun"])
def test_a_host_whose_node_or_torchrun_is_killed_is_named_and_ends_the_others(tmp_path, who):
    """N16: with torchruns alone the run went on with orphans."""

    def kill():
        there = node(1)
        torchrun = next(run.agent for run in own_runs() if run.launcher.pid == there.pid)
        (there if who == "node" else torchrun.process()).kill()

    once = OnceRunning(kill)
    run = pp.launch(ENDLESS, on=two_nodes(), out=tmp_path / "run", progress=once, check=False)
    log.info("N16 %s: %.1f s", who, after_s := time.monotonic() - once.acted_s)
    assert after_s < END_S
    assert run.exit_code == HOST_LOST
    found = diagnose(run)
    assert found.cause.rank == -1
    assert found.cause.error_type == {"node": "HostLost", "torchrun": "TorchrunDied"}[who]
    assert "there (ranks 1 and 2)" in run.failure.headline
    assert "chunk" in run.failure.headline


def test_nothing_outlives_a_launcher_that_is_killed(tmp_path):
    """N17: the hosts read the end of their pipes."""
    with launcher_of_two_nodes(tmp_path) as (launcher, family):
        launcher.kill()
        start_s = time.monotonic()
        # Not until their pids are gone: pid 1 has its own pace with orphans, here a second and more.
        wait_for(lambda: not any(map(is_alive, family)), 4)
    log.info("N17 killed: %.1f s", time.monotonic() - start_s)


@needs_hosts
@pytest.mark.cold
def test_a_cable_between_two_hosts_that_is_pulled_is_named_as_that(tmp_path):
    """N01: the pipes do not run over that cable, so both hosts are heard; nobody has named an interface."""
    with hosts_on_a_switch() as hosts:
        open_at = []
        once = OnceRunning(
            lambda: (open_at.extend(listening_on_host(node(number)) for number in (0, 1)), hosts[1].cut())
        )
        on = places_on(hosts, tmp_path, ranks=(1, 2))
        run = pp.launch(ENDLESS, on=on, out=tmp_path / "run", progress=once, check=False)
        log.info("N01: %.1f s", after_s := time.monotonic() - once.acted_s)
    assert after_s < END_S
    known = json.loads((run.run_dir / "hosts.json").read_bytes())["hosts"]
    assert [(host["name"], host["address"], host["interface"]) for host in known] == [
        ("hosta", ADDRESSES[0], CABLE),
        ("hostb", ADDRESSES[1], CABLE),
    ]
    assert open_at == [{ADDRESSES[0]}, {ADDRESSES[1]}]
    assert diagnose(run).cause.error_type == "NetworkSilent"
    assert "between hosta (10.77.77.1) and hostb (10.77.77.2)" in run.failure.headline
    assert (run.run_dir / TORCHRUN_LOG).exists()
    assert socket.gethostname() not in ("hosta", "hostb")
