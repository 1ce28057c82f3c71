"""The pulse of a rank: what is written is read back, and nothing else is taken for one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import psutil
import pytest

from ppwork.records import identity
from ppwork.records.identity import pid_space
from ppwork.records.pulse import Pulse, PulseState, PulseView, gone_ranks, pulse_file, read_pulse

IDS = {"call_id": 7, "chunk_index": 5, "cache_epoch": 1}


def test_a_beat_is_read_back_whole(tmp_path):
    pulse = Pulse(tmp_path, 2)
    first = read_pulse(tmp_path, 2)
    assert (first.state, first.doing, dict(first.ids), first.exit_code) == (PulseState.STARTING, "", {}, None)
    pulse.beat(PulseState.BUSY, "generate", IDS, 123)
    view = read_pulse(tmp_path, 2)
    assert (view.rank, view.pid, view.space) == (2, os.getpid(), pid_space())
    assert (view.state, view.doing, dict(view.ids), view.since_ns) == (PulseState.BUSY, "generate", IDS, 123)
    assert (view.beat, view.paused_s) == (first.beat + 1, 0.0)
    pulse.beat(PulseState.BUSY, "encode", IDS, 123, paused_s=83.25)
    assert read_pulse(tmp_path, 2).paused_s == 83.25
    assert view.process() == psutil.Process()


def test_a_step_whose_file_has_no_name_in_utf_8_is_told_all_the_same(tmp_path):
    pulse = Pulse(tmp_path, 0)
    pulse.begin("sum (\udcff.py:3)", IDS, 5)
    assert read_pulse(tmp_path, 0).doing == "sum (?.py:3)"
    pulse.beat(PulseState.BUSY, "recv (\udcff.py:4)", IDS, 6)
    assert read_pulse(tmp_path, 0).doing == "recv (?.py:4)"


def test_a_rank_that_left_stays_so_and_keeps_its_first_exit_code(tmp_path):
    pulse = Pulse(tmp_path, 0)
    pulse.beat(PulseState.BUSY, "encode", IDS, 9)
    pulse.leave(72)
    pulse.leave(1)
    pulse.beat(PulseState.IDLE)
    view = read_pulse(tmp_path, 0)
    assert (view.state, view.exit_code, view.doing, dict(view.ids)) == (PulseState.LEFT, 72, "encode", IDS)


def test_an_exit_code_of_zero_is_not_none(tmp_path):
    Pulse(tmp_path, 0).leave(0)
    assert read_pulse(tmp_path, 0).exit_code == 0


@pytest.mark.parametrize("damage", ["missing", "empty", "short", "torn", "zeros", "long"])
def test_what_is_no_whole_pulse_is_none(tmp_path, damage):
    Pulse(tmp_path, 1)
    path = pulse_file(tmp_path, 1)
    good = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        torn = good[:20] + bytes([good[20] ^ 1]) + good[21:]
        bad = {"empty": b"", "short": good[:-1], "torn": torn, "zeros": bytes(len(good)), "long": good + b"."}
        path.write_bytes(bad[damage])
    assert read_pulse(tmp_path, 1) is None


def test_a_beat_works_after_the_folder_is_gone(tmp_path):
    """As on a full disk: a beat asks the file system for nothing."""
    folder = tmp_path / "run"
    folder.mkdir()
    pulse = Pulse(folder, 0)
    pulse_file(folder, 0).unlink()
    folder.rmdir()
    pulse.beat(PulseState.IDLE)
    assert read_pulse(folder, 0) is None


def test_a_folder_that_cannot_be_written_is_an_error_at_once(tmp_path):
    with pytest.raises(OSError, match="No such file"):
        Pulse(tmp_path / "nowhere", 0)


def test_a_name_that_is_too_long_is_cut(tmp_path):
    pulse = Pulse(tmp_path, 0)
    pulse.beat(PulseState.BUSY, "x" * 100)
    assert read_pulse(tmp_path, 0).doing == "x" * 96
    pulse.beat(PulseState.IDLE, "barrier (my_loop.py:41)")
    assert read_pulse(tmp_path, 0).own_call == "barrier (my_loop.py:41)"
    pulse.beat(PulseState.BUSY, "generate")
    assert read_pulse(tmp_path, 0).own_call == ""


PROGRAM = "import sys; from ppwork.records.pulse import Pulse; from pathlib import Path\n"
PROGRAM += "p = Pulse(Path(sys.argv[1]), 3); print(flush=True); sys.stdin.read()"


@pytest.mark.processes
def test_the_process_is_known_while_it_lives_and_not_as_a_zombie_or_as_another(tmp_path):
    child = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    try:
        child.stdout.readline()
        view = read_pulse(tmp_path, 3)
        assert view.pid == child.pid
        assert view.process().status() != psutil.STATUS_STOPPED
        child.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, child.pid, os.WSTOPPED)
        assert view.process().status() == psutil.STATUS_STOPPED
        child.kill()
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and nobody has asked for its code
        assert view.process() is None
        Pulse(tmp_path, 0)
        assert gone_ranks(tmp_path) == [3]
    finally:
        child.kill()
        child.communicate()
    assert view.process() is None
    assert read_pulse(tmp_path, 3).state is PulseState.STARTING  # it never said that it left


def test_a_pid_that_was_given_to_another_process_is_not_taken_for_the_rank(tmp_path, monkeypatch):
    Pulse(tmp_path, 0)
    view = read_pulse(tmp_path, 0)
    monkeypatch.setattr(identity, "_started", lambda _: view.started + 60)
    assert view.process() is None


def test_a_clock_that_is_set_makes_no_rank_a_stranger(tmp_path, monkeypatch):
    """A peer that is frozen must not be taken for one that is gone."""
    Pulse(tmp_path, 0)
    real = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: real(process) + 1.0)
    assert read_pulse(tmp_path, 0).process() == psutil.Process()


def test_a_rank_that_left_or_ran_elsewhere_is_not_gone(tmp_path, monkeypatch):
    monkeypatch.setattr(PulseView, "process", lambda _: None)
    Pulse(tmp_path, 0)
    Pulse(tmp_path, 1).leave(0)
    (tmp_path / "pulse-rank2.half").touch()
    assert gone_ranks(tmp_path) == [0]
    monkeypatch.setattr(identity, "pid_space", lambda: "another boot")
    assert gone_ranks(tmp_path) == []


def test_of_another_host_no_process_is_known(tmp_path, monkeypatch):
    Pulse(tmp_path, 0)
    view = read_pulse(tmp_path, 0)
    monkeypatch.setattr(identity, "pid_space", lambda: "elsewhere")
    assert not view.here
    assert view.process() is None
