"""The watch over torchrun writes words that the diagnosis reads."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest
from waiting import END_S

from ppwork.diagnosis.report import longest_pause_s
from ppwork.launcher import agent
from ppwork.launcher.agent import PAUSED_S, POLL_S, TorchrunWatch
from ppwork.process import TORCHRUN_HUNG

HANGS_AFTER_QUICK_RANKS = """
import subprocess, time
rank = subprocess.Popen(["true"])
time.sleep(0.5)  # between two looks of torchrun at its ranks
rank.wait()
time.sleep(60)
"""


def test_a_pause_of_the_launcher_is_written_down_as_the_diagnosis_reads_it(tmp_path, monkeypatch):
    now, lines = [100.0], []
    monkeypatch.setattr(agent.time, "monotonic", lambda: now[0])
    watch = TorchrunWatch(psutil.Process(), tmp_path / "torchrun.log", 5.0, lines.append)
    for pause_s in (0.9 * PAUSED_S, 60.3, 2.0):
        now[0] += pause_s
        assert watch.look() is None
    assert len(lines) == 2
    assert longest_pause_s("\n".join(lines)) == pytest.approx(60.3)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells of children that have ended")
def test_torchrun_that_hangs_after_ranks_that_lived_a_moment_is_ended(tmp_path):
    """Nobody saw them alive; without this only the run's limit ended it."""
    with subprocess.Popen([sys.executable, "-c", HANGS_AFTER_QUICK_RANKS]) as torchrun:
        try:
            watch = TorchrunWatch(
                psutil.Process(torchrun.pid), tmp_path / "torchrun.log", 5.0, lambda _: None, leave_s=0.5
            )
            deadline, ending = time.monotonic() + END_S, None
            while ending is None and time.monotonic() < deadline:
                ending = watch.look()
                time.sleep(POLL_S)  # as the launcher
        finally:
            torchrun.kill()
    assert ending == TORCHRUN_HUNG
