"""A failing rank stays for those that can hear of it, no longer than its bound, and for nobody else."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from dataclasses import replace
from functools import partial

import psutil
import pytest
from waiting import wait_for

from ppwork.errors import LocalProtocolError, PeerLostError, PeerTimeoutError, TerminalNotice
from ppwork.process import FAILED, SECONDARY
from ppwork.protocol.topology import Topology
from ppwork.records.identity import Identity
from ppwork.records.pulse import Pulse, PulseState, PulseView, read_pulse
from ppwork.worker import exit_barrier as module
from ppwork.worker.exit_barrier import ExitBarrier, exit_barrier_of, stay

pytestmark = pytest.mark.processes

NOTICE = TerminalNotice("ended by a peer", where={"rank": 1, "peer": 0})
OWN, LOST, LATE = LocalProtocolError("my mistake"), PeerLostError("closed"), PeerTimeoutError("silent")


@pytest.mark.parametrize(
    ("rank", "error", "computing", "expected"),
    [
        (0, OWN, True, ExitBarrier((1, 2))),
        (1, OWN, False, ExitBarrier((0, 2))),
        (1, OWN, True, ExitBarrier((0,), deaf=(2,))),
        (2, OWN, False, ExitBarrier(deaf=(0, 1))),
        (1, LOST, False, ExitBarrier((0, 2), follows=True)),
        (1, NOTICE, True, ExitBarrier((0, 2), follows=True)),
        (0, LATE, True, ExitBarrier()),
    ],
)
def test_a_rank_stays_for_those_that_hear_of_it(rank, error, computing, expected):
    symptom = error is not OWN
    assert exit_barrier_of(rank, Topology(2), error, symptom=symptom, computing=computing) == expected


@pytest.fixture
def peer():
    """A process that is there until the test ends it."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield psutil.Process(process.pid)
        process.kill()


def pulse_of(process: psutil.Process, state: PulseState, space: str = "") -> PulseView:
    who = Identity.of(process.pid)
    return PulseView(1, who.pid, who.started, space or who.space, 1, state)


def timed(exit_barrier, view, bound_s):
    start = time.monotonic()
    silent = stay(exit_barrier, lambda rank: view, start + bound_s)
    return silent, time.monotonic() - start


def test_a_peer_that_does_not_speak_is_waited_for_until_the_bound(peer):
    silent, took_s = timed(ExitBarrier((1,)), pulse_of(peer, PulseState.BUSY), 0.2)
    assert silent == (1,)
    assert took_s >= 0.2


@pytest.mark.parametrize("case", ["spoke", "no pulse", "stopped", "gone", "another host"])
def test_a_peer_that_has_spoken_or_cannot_is_not_waited_for(peer, case):
    view = pulse_of(
        peer, PulseState.LEFT if case == "spoke" else PulseState.BUSY, "elsewhere" * (case == "another host")
    )
    if case == "stopped":
        peer.suspend()
        wait_for(lambda: peer.status() == psutil.STATUS_STOPPED)
    if case == "gone":
        peer.kill()
        peer.wait()
    assert timed(ExitBarrier((1,)), None if case == "no pulse" else view, 60.0)[0] == ()


def test_the_rank_with_the_cause_leaves_first(peer):
    """Its pulse says that it leaves, and with which code; its process is there until then."""
    follows = ExitBarrier((1,), follows=True)
    of_follower = replace(pulse_of(peer, PulseState.LEFT), exit_code=SECONDARY)
    assert timed(follows, of_follower, 60.0)[0] == ()
    of_cause = replace(of_follower, exit_code=FAILED)
    assert timed(follows, of_cause, 0.1)[0] == (1,)
    assert timed(ExitBarrier((1,)), of_cause, 60.0)[0] == ()
    peer.kill()
    peer.wait()
    assert timed(follows, of_cause, 60.0)[0] == ()


def test_who_only_hears_the_hanging_up_has_time_for_its_record_also_behind_one_that_never_speaks(
    peer, monkeypatch
):
    hung_up = threading.Event()
    monkeypatch.setattr(module, "hang_up", hung_up.set)
    silent, deaf = pulse_of(peer, PulseState.BUSY), pulse_of(peer, PulseState.BUSY)
    looks = 0

    def read(rank):
        nonlocal looks
        if rank == 0:
            return silent
        looks += hung_up.is_set()
        return deaf if looks < 5 else replace(deaf, state=PulseState.LEFT)  # it takes a few looks

    assert stay(ExitBarrier((0,), deaf=(2,)), read, time.monotonic() + 1.0) == (0,)
    assert hung_up.is_set()


HANGS_UP = """
import socket, sys
from ppwork.process import FAILED, SECONDARY
from ppwork.worker.exit_barrier import hang_up
end = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
end.sendall(b"notice")
hang_up()
input()
"""


def test_a_rank_that_hangs_up_is_heard_while_it_is_there():
    """What it had sent comes through before that."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", HANGS_UP, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            connection, _ = server.accept()
            with connection:
                connection.settimeout(30.0)
                assert b"".join(iter(partial(connection.recv, 100), b"")) == b"notice"
            assert process.poll() is None
            process.kill()


def test_two_ranks_that_stay_for_each_other_both_leave_as_soon_as_both_have_spoken(tmp_path, monkeypatch):
    """The wait ends by the last pulse, not by the bound."""
    pulses = [Pulse(tmp_path, rank) for rank in (0, 1)]
    monkeypatch.setattr(module, "LOOK_S", 0.0)
    pulses[0].leave(1)
    threading.Thread(target=pulses[1].leave, args=[3]).start()
    assert stay(ExitBarrier((1,)), partial(read_pulse, tmp_path), time.monotonic() + 60.0) == ()
    assert stay(ExitBarrier((0,)), partial(read_pulse, tmp_path), time.monotonic() + 60.0) == ()
