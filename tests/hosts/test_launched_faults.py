"""The N faults with a node on each host (``on=``): what is said, how soon, and that nothing is left.

``make hosts`` logs the seconds of each; docs/machines.md has them.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
import time
from importlib import metadata
from pathlib import Path

import pytest
from checkout import SUPPORT
from host_processes import freeze, power_off, process, processes, thaw
from hosts import needs_hosts
from over_hosts import ENDLESS, FREEZE_S, LATE_S, disturbed_launch, launcher_of_two_nodes, log
from relay import relayed
from waiting import wait_for

import ppwork as pp
from ppwork.errors import UnavailableError
from ppwork.faults.hosts import ADDRESSES, CABLE, hosts_on_a_switch, places_on
from ppwork.launcher.processes import is_alive
from ppwork.protocol.bounds import Bounds
from ppwork.records.pulse import read_pulse
from ppwork.timeline.chunks import aligned, emissions, spans_by_chunk

pytestmark = [pytest.mark.multiproc, pytest.mark.cold, pytest.mark.timeout(240), needs_hosts]

SOON_S = FREEZE_S + 1.0 + LATE_S
BETWEEN = "The network between hosta (10.77.77.1) and hostb (10.77.77.2)"
AHEAD_S = 5000
WHOLE = pp.Plan(mesh_size=2, chunks=6, in_flight_depth=3, backend="gloo", verify=True)


def cut(hosts, run_dir):
    hosts[1].cut()


def a_to_b(hosts, run_dir):
    hosts[0].lose_what_goes_to(hosts[1])


def b_to_a(hosts, run_dir):
    hosts[1].lose_what_goes_to(hosts[0])


def stop_rank_2(hosts, run_dir):
    process(hosts[1], read_pulse(run_dir, 2).pid).send_signal(signal.SIGSTOP)


def kill_rank_2(hosts, run_dir):
    process(hosts[1], read_pulse(run_dir, 2).pid).kill()


@pytest.mark.parametrize(
    ("name", "act", "ranks", "kind", "words"),
    [
        ("N02", cut, (2, 1), "NetworkSilent", BETWEEN),
        ("N03 a to b", a_to_b, (1, 2), "NetworkSilent", BETWEEN),
        ("N03 b to a", b_to_a, (1, 2), "NetworkSilent", BETWEEN),
        ("N06 hosta", lambda hosts, _: power_off(hosts[0]), (1, 2), "HostLost", "Host hosta (rank 0)"),
        ("N06 hostb", lambda hosts, _: power_off(hosts[1]), (1, 2), "HostLost", "Host hostb (ranks 1"),
        ("N08", stop_rank_2, (1, 2), "PeerFrozenError", "was stopped (SIGSTOP)"),
        ("killed rank", kill_rank_2, (1, 2), "RankDied", "Rank 2 (follower) failed first"),
    ],
    ids=lambda value: value if isinstance(value, str) and value.startswith(("N", "killed")) else "",
)  # fmt: skip
def test_what_is_lost_in_mid_run_is_named_within_seconds(tmp_path, name, act, ranks, kind, words):
    ended = disturbed_launch(tmp_path, act, name=name, ranks=ranks)
    assert ended.after_s < SOON_S
    assert ended.said.cause.error_type == kind, ended.said.text
    assert words in ended.said.text


def test_n17_a_launcher_that_is_stopped_is_gone_for_its_hosts(tmp_path):
    """As by Ctrl-Z; one that is killed closes its pipes, which is tried on every commit."""
    with launcher_of_two_nodes(tmp_path) as (launcher, family):
        launcher.send_signal(signal.SIGSTOP)
        start_s = time.monotonic()
        wait_for(lambda: not any(map(is_alive, family)), SOON_S)
        log.info("N17 stopped: %.1f s", time.monotonic() - start_s)


def test_n07_a_frozen_host_is_named_and_has_nothing_left_once_it_is_thawed(tmp_path):
    def goes_on(hosts):
        assert len(processes(hosts[1])) >= 4  # nobody could end a node, its torchrun and its ranks
        thaw(hosts[1])
        start_s = time.monotonic()
        wait_for(lambda: not processes(hosts[1]), 10)
        log.info("N07: empty %.1f s after the thaw", time.monotonic() - start_s)

    ended = disturbed_launch(
        tmp_path, lambda hosts, _: freeze(hosts[1]), name="N07", stays=["hostb"], after=goes_on, apart=True
    )
    assert ended.after_s < SOON_S
    assert ended.said.cause.error_type == "HostLost"
    assert "Host hostb (ranks 1 and 2) was not heard for" in ended.said.text


def test_a_slow_network_with_losses_ends_no_run(tmp_path):
    """N04 and N05: 2 % of the frames lost, and 100 ms each way."""
    for number, (delay_s, loss) in enumerate(((0.0, 0.02), (0.1, 0.0))):
        folder = tmp_path / str(number)
        folder.mkdir()
        plan = ENDLESS.replace(chunks=12, verify=True, freeze_s=5.0)
        with hosts_on_a_switch() as hosts, relayed(hosts[1], delay_s=delay_s, loss=loss) as counts:
            start_s = time.monotonic()
            run = pp.launch(plan, on=places_on(hosts, folder, ranks=(1, 2)), out=folder / "run")
            log.info("N04, N05: delay %s s, loss %s: %.1f s", delay_s, loss, time.monotonic() - start_s)
        assert run.summary["max_abs_diff"] <= plan.allowed_difference
        assert (counts[1] > 0) == (loss > 0)


def test_other_clocks_and_a_name_of_127_0_1_1_are_not_noticed(tmp_path, monkeypatch):
    """N09 and N11: an interface that was named for a run here, Debian's line in /etc/hosts, 5000 s ahead."""
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    with hosts_on_a_switch(ahead_s={"hostb": AHEAD_S}) as hosts:
        for host in hosts:
            line = f"127.0.0.1 localhost\n127.0.1.1 {host.name}"
            subprocess.run(host.command(["sh", "-c", f"echo '{line}' > /etc/hosts"]), check=True, timeout=20)
        run = pp.launch(WHOLE, on=places_on(hosts, tmp_path, ranks=(1, 2)), out=tmp_path / "run")
    a, b = run.summary["hosts"]
    assert (a["address"], b["address"], b["interface"]) == (*ADDRESSES, CABLE)
    assert abs(b["offset_ns"] - a["offset_ns"] - AHEAD_S * 1_000_000_000) < a["error_ns"] + b["error_ns"]
    chunks, emits = spans_by_chunk(aligned(run.entries_by_rank)), emissions(aligned(run.entries_by_rank))
    for k, spans in chunks.items():
        begins = [spans[step][0].start_ns for step in ((0, "send"), (1, "generate"), (0, "decode"))]
        assert begins == sorted(begins), f"chunk {k} came before it was sent"
        assert spans[1, "generate"][0].end_ns < emits[k]


def test_a_host_that_is_not_there_or_not_reached_is_refused_and_named(tmp_path):
    """N12: an unknown name; a cable that is not in."""
    with hosts_on_a_switch() as hosts:
        known = places_on(hosts, tmp_path, ranks=(1, 2))
        unknown = pp.Command(known.template, hosts=["hosta", "hostx"])
        hosts[1].cut()
        for on, words in (
            (unknown, "Host hostx started no node.*there is no host hostx"),
            (known, "Host hostb does not reach"),
        ):
            start_s = time.monotonic()
            with pytest.raises(UnavailableError, match=words) as refused:
                pp.launch(ENDLESS, on=on, out=tmp_path / "run")
            log.info("N12: %.1f s: %s", time.monotonic() - start_s, refused.value.what)
            assert time.monotonic() - start_s < 15 + LATE_S
            assert "Nothing was started" in refused.value.what
            wait_for(lambda: not any(processes(host) for host in hosts), 10)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("what", ["ppwork", "torch"])
def test_n10_a_host_with_another_version_is_refused_before_anything_starts(tmp_path, what):
    """Really another one: a copy that says so, which hostb has at the path where the others have theirs."""
    if what == "ppwork":
        version, place, file = pp.__version__, Path(pp.__file__).parent, "version.py"
    else:  # of which a node asks the installer's record, and imports nothing
        version, file = metadata.version(what), "METADATA"
        place = Path(str(metadata.distribution(what).locate_file(f"{what}-{version}.dist-info")))
    other = tmp_path / "other"
    shutil.copytree(place, other, ignore=shutil.ignore_patterns("__pycache__"))
    (other / file).write_text((other / file).read_text().replace(version, "9.9"))
    with hosts_on_a_switch(folders={"hostb": {other: place}}) as hosts:
        start_s = time.monotonic()
        with pytest.raises(UnavailableError) as refused:
            pp.launch(ENDLESS, on=places_on(hosts, tmp_path, ranks=(1, 2)), out=tmp_path / "run")
        log.info("N10 %s: %.1f s: %s", what, time.monotonic() - start_s, refused.value.what)
        assert f"different versions of {what}: hosta {version} and hostb 9.9" in refused.value.what
        assert "Nothing was started" in refused.value.what
        wait_for(lambda: not any(processes(host) for host in hosts), 10)


def test_n14_a_full_disk_of_one_host_is_named(tmp_path, monkeypatch):
    (scratch := tmp_path / "scratch").mkdir()
    monkeypatch.setenv("TMPDIR", str(scratch))

    def fill(hosts, run_dir):
        command = ["sh", "-c", f"dd if=/dev/zero of=$(echo {scratch}/ppwork-run-*)/full bs=1M; true"]
        subprocess.run(hosts[1].command(command), check=True, timeout=20, capture_output=True)

    def small(hosts):
        mount = ["mount", "-t", "tmpfs", "-o", "size=80m", "tmpfs", str(scratch)]
        subprocess.run(hosts[1].command(mount), check=True, timeout=20)

    ended = disturbed_launch(tmp_path, fill, name="N14", before=small, use_shared=False)
    assert ended.after_s < SOON_S
    assert "The disk of hostb (ranks 1 and 2)" in ended.run.failure.what
    assert "is full" in ended.run.failure.what
    assert "could not write its records" in ended.said.text


@pytest.mark.skipif(shutil.which("nft") is None, reason="there is no nft")
@pytest.mark.parametrize("when", ["before the start", "in mid-run"])
def test_n15_a_network_that_loses_large_packets_is_named_with_its_mtu(tmp_path, when):
    """Beats are small and pass: this takes the ranks' own bound."""

    def hole(hosts, run_dir=None):
        table = "add table ip t; add chain ip t f { type filter hook output priority 0; }"
        rule = f"{table}; add rule ip t f meta length > 1400 drop"
        subprocess.run(hosts[1].command(["nft", rule]), check=True, timeout=20)

    plan = ENDLESS.replace(timeout_s=8.0)
    if when == "in mid-run":
        ended = disturbed_launch(tmp_path, hole, name="N15", plan=plan)
    else:
        ended = disturbed_launch(tmp_path, None, name="N15 before the start", plan=plan, before=hole)
    assert ended.after_s < Bounds.of(plan).start_s + LATE_S
    assert ended.said.cause.rank == -1, ended.said.text
    assert "hosta and hostb" in ended.said.text
    assert "MTU" in ended.said.check_first


def test_n18_a_rank_that_fails_when_all_others_are_done_ends_the_run_at_once(tmp_path, monkeypatch):
    """A plain torchrun on the other host waits for it 300 s."""
    monkeypatch.chdir(SUPPORT)
    late = {"late_s": 2.0, "late_code": 7, "told": str(tmp_path / "told")}
    plan = ENDLESS.replace(chunks=8, stage1="late_stages:LateGenerator", options=ENDLESS.options | late)
    plan = plan.replace(stage0="late_stages:Source")
    with hosts_on_a_switch() as hosts:
        on = places_on(hosts, tmp_path, ranks=(1, 2))
        run = pp.launch(plan, on=on, out=tmp_path / "run", check=False)
        after_s = time.monotonic() - float((tmp_path / "told").read_text())
        assert not any(processes(host) for host in hosts)
    log.info("N18: %.1f s: %s", after_s, run.failure and run.failure.headline)
    assert after_s < 2.0 + LATE_S
    assert (run.exit_code, pp.diagnose(run.run_dir).cause.rank) == (1, 2)
    assert "exited with code 7" in run.failure.what


def test_a_host_that_is_long_done_waits_for_one_whose_ranks_leave_late(tmp_path, monkeypatch):
    """Its own torchrun stays until the others are through, and is not taken for one that hangs."""
    monkeypatch.chdir(SUPPORT)
    late = {"late_s": 17.0, "late_code": 0, "told": str(tmp_path / "told")}
    plan = ENDLESS.replace(chunks=8, stage1="late_stages:LateGenerator", options=ENDLESS.options | late)
    plan = plan.replace(stage0="late_stages:Source")
    with hosts_on_a_switch() as hosts:
        run = pp.launch(plan, on=places_on(hosts, tmp_path, ranks=(1, 2)), out=tmp_path / "run", check=False)
    assert run.failure is None
