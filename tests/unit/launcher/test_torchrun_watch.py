"""The watch over torchrun writes words that the diagnosis reads."""

from __future__ import annotations

import subprocess
import sys
from typing import NamedTuple

import psutil
import pytest
from waiting import wait_for

from ppwork.diagnosis.report import longest_pause_s
from ppwork.launcher import torchrun_watch
from ppwork.launcher.torchrun_watch import PAUSED_S, TorchrunWatch
from ppwork.process import TORCHRUN_HUNG

HANGS_AFTER_QUICK_RANKS = """
import subprocess, time
rank = subprocess.Popen(["true"])
input()  # until torchrun's next look at its ranks
rank.wait()
time.sleep(60)
"""


def test_a_pause_of_the_launcher_is_written_down_as_the_diagnosis_reads_it(tmp_path, monkeypatch):
    now, lines = [100.0], []
    monkeypatch.setattr(torchrun_watch.time, "monotonic", lambda: now[0])
    watch = TorchrunWatch(psutil.Process(), tmp_path / "torchrun.log", 5.0, lines.append)
    for pause_s in (0.9 * PAUSED_S, 60.3, 2.0):
        now[0] += pause_s
        assert watch.look() is None
    assert len(lines) == 2
    assert longest_pause_s("\n".join(lines)) == pytest.approx(60.3)


class Rank(NamedTuple):
    """Of a process no more than what is asked of it here."""

    pid: int


def test_the_time_in_which_it_kills_ranks_is_no_pause_of_the_launcher(tmp_path, monkeypatch):
    """A rank that hangs in a driver is waited for, for seconds; the diagnosis would blame a pause."""
    now, lines, ended = [100.0], [], []
    ranks = [Rank(11), Rank(12)]

    def end(processes, polite_s):
        now[0] += 3.0
        ended.append([process.pid for process in processes])

    monkeypatch.setattr(torchrun_watch.time, "monotonic", lambda: now[0])
    monkeypatch.setattr(torchrun_watch, "ranks_of", lambda _: ranks)
    monkeypatch.setattr(torchrun_watch, "with_children", lambda rank: [rank])
    monkeypatch.setattr(torchrun_watch, "state_of", lambda _: psutil.STATUS_DISK_SLEEP)
    monkeypatch.setattr(torchrun_watch, "environment_of", lambda rank: {"RANK": str(rank.pid - 11)})
    monkeypatch.setattr(torchrun_watch, "is_alive", lambda _: True)
    monkeypatch.setattr(torchrun_watch, "end", end)
    log = tmp_path / "torchrun.log"
    log.write_text("Sending process 11 closing signal SIGTERM\n")
    watch = TorchrunWatch(psutil.Process(), log, 5.0, lines.append)
    for _ in range(3):
        watch.look()
        now[0] += 0.9 * PAUSED_S
    assert ended
    assert ended[0] == [11, 12], "one that does not die would hold up the others"
    assert longest_pause_s("\n".join(lines)) == 0.0
    assert {int(line.split()[2]) for line in lines if "could not be killed" in line} == {0, 1}


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of children that have ended")
def test_torchrun_that_hangs_after_ranks_that_lived_a_moment_is_ended(tmp_path):
    """Nobody saw them alive; without this only the run's limit ended it."""
    command = [sys.executable, "-c", HANGS_AFTER_QUICK_RANKS]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as torchrun:
        try:
            process = psutil.Process(torchrun.pid)
            watch = TorchrunWatch(process, tmp_path / "torchrun.log", 5.0, lambda _: None, leave_s=0.5)
            wait_for(lambda: [rank.status() for rank in process.children()] == [psutil.STATUS_ZOMBIE])
            assert watch.look() is None
            torchrun.stdin.write(b"\n")
            torchrun.stdin.flush()
            assert wait_for(watch.look) == TORCHRUN_HUNG
        finally:
            torchrun.kill()
