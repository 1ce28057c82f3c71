"""The launcher over made nodes: who is refused before anything starts, and what ends a run that goes."""

from __future__ import annotations

import errno

import psutil
import pytest
from spoken_nodes import speaking

import ppwork as pp
from ppwork.errors import PlanError, UnavailableError
from ppwork.launcher.nodes.gather import Home
from ppwork.launcher.nodes.host import TRANSITIONS, HostState
from ppwork.launcher.nodes.host_session import HostSession
from ppwork.launcher.nodes.places import Places
from ppwork.launcher.nodes.wire import Taken
from ppwork.launcher.view import StopAsked
from ppwork.process import HOST_LOST, PAST_LIMIT, UNWRITABLE
from ppwork.records.hosts import HostsRecord
from ppwork.records.pulse import Pulse

pytestmark = pytest.mark.processes

PLAN = pp.Plan(mesh_size=2, chunks=3, backend="gloo")
FREEZE_S = 2.5


def hosts_saying(tmp_path, script, **options) -> HostSession:
    places = pp.Command("", hosts=["a", "b"], python=speaking(tmp_path, script), **options)
    return HostSession(places, PLAN.world_size, FREEZE_S)


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (
            'HELLO["ppwork"] = f"9.{NODE}"; up_to_start()',
            "different versions of ppwork: a 9.0 and b 9.1",
        ),
        ('HELLO["torch"] = f"2.{12 + NODE}"; up_to_start()', "different versions of torch: a 2.12"),
        ('HELLO["wire"] = wire.VERSION - 1; up_to_start()', "different versions of wire"),
        ('HELLO["host"] = "one"; up_to_start()', "Two of the hosts are one"),
        (
            'print("Permission denied (publickey).", file=sys.stderr); sys.exit(255)',
            r"255\): Permission denied",
        ),
        ('print("Host key verification failed."); sys.exit(255)', "Host key verification failed"),
        ("time.sleep(600)", "did not answer within"),
        ("say(wire.NodeDone(0, 1e3)); heard()", "said 'done' while it was called"),
        ('print("@pp 0.{}", flush=True); heard()', "does not read"),
        ("say(wire.Refused('It has no room.', 'df -h')); heard()", "It has no room"),
    ],
)
def test_hosts_that_are_not_ready_are_refused_with_their_own_words(tmp_path, monkeypatch, script, words):
    if "did not answer" in words:
        monkeypatch.setattr(Places, "greet_s", 1.0)
    kind = PlanError if words.startswith("Two of") else UnavailableError
    with hosts_saying(tmp_path, script) as hosts, pytest.raises(kind, match=words) as refused:
        hosts.greet()
    if "did not answer" in words:  # nobody waits for it to leave
        assert HostState.LOST in {host.state for host in hosts.hosts}
    assert "Nothing was started" in refused.value.what or "Two of" in refused.value.what
    assert refused.value.check_first


def test_a_host_without_the_clip_the_folder_or_a_way_to_the_first_is_refused(tmp_path):
    with hosts_saying(tmp_path, 'up_to_start(missing=("/clip.mp4",))') as hosts:
        hosts.greet()
        with pytest.raises(UnavailableError, match=r"host0 \(rank 0\) has no /clip.mp4"):
            hosts.look("run", tmp_path, ["/clip.mp4"])
    with hosts_saying(tmp_path, "up_to_start()") as hosts:
        hosts.greet()
        with pytest.raises(UnavailableError, match=r"host0 \(rank 0\) does not see"):
            hosts.look("run", tmp_path, everywhere=True)
    script = "\n".join([
        "say(wire.Hello(**HELLO)); heard(wire.Look)",
        'say(wire.Looked(folder="/there", shared=False, free_mb=1e6)); heard((wire.Listen, wire.Reach))',
        "public = wire.Address('eth0', '8.8.8.8')",
        "say(wire.Reached(()) if NODE else wire.Listening((ADDRESS,), (public,))); heard()",
    ])  # fmt: skip
    with hosts_saying(tmp_path, script) as hosts:
        hosts.greet()
        hosts.look("run", tmp_path)
        words = r"Host host1 does not reach host0 at any of 127.0.0.1 \(lo\); not tried.*8.8.8.8"
        with pytest.raises(UnavailableError, match=words):
            hosts.meet()


@pytest.mark.parametrize(
    ("script", "code", "words"),
    [
        ("say(wire.NodeDone(0, 1e3))", 0, ""),
        ("say(wire.NodeDone(0 if NODE else 7, 1e3))", 7, ""),
        ("say(wire.NodeDone(7, 1e3)) if NODE else None", 7, ""),
        ("NODE or time.sleep(600)", HOST_LOST, "Host host0 (rank 0) was not heard for "),
        ("NODE or sys.exit(9)", HOST_LOST, "Host host0 (rank 0) lost its node (exit code 9)"),
        (
            "say(wire.NodeDone(-9 if NODE else 1, 1e3))",
            HOST_LOST,
            "The torchrun of host1 (ranks 1 and 2) was ",
        ),
        (
            "say(wire.Quiet(0, 1.2, False)) if NODE else None",
            HOST_LOST,
            "host0 (127.0.0.1) and host1 (10.0.0.2) passed nothing for 1.2 s",
        ),
        ("say(wire.Piece('../x', 0, b'', True))", HOST_LOST, "'../x', which is none of its own"),
        ("say(wire.Hello(**HELLO))", HOST_LOST, "said 'hello' while it was running"),
    ],
)
def test_what_ends_a_run_is_named_and_all_others_are_told(tmp_path, script, code, words):
    """A host that fell silent and one that failed; a torchrun; the network between two; what no node says."""
    with hosts_saying(tmp_path, f"up_to_start(); {script}; heard()") as hosts:
        hosts.greet()
        hosts.look("run", tmp_path)
        hosts.meet()
        ended = hosts.run(PLAN, ["x"], tmp_path, 60.0, lambda: None)
    known = HostsRecord.load(tmp_path)
    assert (ended, words in (known.end.what if known.end else "")) == (code, True)
    assert bool(known.end) == bool(words)
    assert [host.ranks for host in known.hosts] == [(0,), (1, 2)]


def test_a_late_failure_waits_for_no_records_of_ranks_that_have_left(tmp_path, monkeypatch):
    """N18: the torchrun of the others would stay 300 s, and has nothing to tell."""
    for bound, bound_s in (("GRACE_S", 600.0), ("LATE_S", 0.0)):  # who waits for them passes the limit
        monkeypatch.setattr(f"ppwork.launcher.nodes.host_session.{bound}", bound_s)
    Pulse(tmp_path, 0).leave(0)
    script = "up_to_start(); say(wire.NodeDone(7, 1e3)) if NODE else None; heard()"
    with hosts_saying(tmp_path, script) as hosts:
        hosts.greet()
        hosts.look("run", tmp_path)
        hosts.meet()
        assert hosts.run(PLAN, ["x"], tmp_path, 30.0, lambda: None) == 7


@pytest.mark.parametrize("full", [False, True])
def test_a_host_is_told_to_keep_nothing_only_where_all_that_it_sent_was_written(tmp_path, monkeypatch, full):
    """With the disk of the launcher full, its folder has the only copy of its records."""

    def write(home, piece):
        if full:
            raise OSError(errno.ENOSPC, "No space left on device")

    told = []
    tell = HostSession._tell
    monkeypatch.setattr(Home, "write", write)
    monkeypatch.setattr(
        HostSession, "_tell", lambda hosts, host, word: told.append(word) or tell(hosts, host, word)
    )
    script = "up_to_start(); say(wire.Piece('rank0.log', 0, b'x')); say(wire.NodeDone(0, 1e3)); heard()"
    with hosts_saying(tmp_path, script) as hosts:
        hosts.greet()
        hosts.look("run", tmp_path)
        hosts.meet()
        code = hosts.run(PLAN, ["x"], tmp_path, 60.0, lambda: None)
    assert code == (UNWRITABLE if full else 0)
    assert told.count(Taken()) == (0 if full else 2)


def test_every_state_but_the_last_ones_leads_somewhere():
    leading = {state for state, _ in TRANSITIONS}
    assert leading >= {*HostState} - {HostState.LOST}
    assert {*TRANSITIONS.values()} <= {*HostState}


def test_a_run_that_is_stopped_or_outlives_its_limit_ends_everywhere(tmp_path, monkeypatch):
    """As by the Stop button; the limit is for hosts that do not keep their own."""
    monkeypatch.setattr("ppwork.launcher.nodes.host_session.LATE_S", 0.0)
    going = "up_to_start(); heard()"
    for look, limit_s in ((stopped, 60.0), (lambda: None, 0.5)):
        with hosts_saying(tmp_path, going) as hosts:
            hosts.greet()
            hosts.look("run", tmp_path)
            hosts.meet()
            if look is stopped:
                with pytest.raises(StopAsked):
                    hosts.run(PLAN, ["x"], tmp_path, limit_s, look)
            else:
                assert hosts.run(PLAN, ["x"], tmp_path, limit_s, look) == PAST_LIMIT
            processes = [channel.pid for channel in hosts._channels]
        assert HostsRecord.load(tmp_path).end is None
        assert not any(map(psutil.pid_exists, processes))


def stopped():
    raise StopAsked
