"""The watch over torchrun writes words that the diagnosis reads."""

from __future__ import annotations

import psutil
import pytest

from ppwork.diagnosis.report import longest_pause_s
from ppwork.launcher import agent
from ppwork.launcher.agent import PAUSED_S, TorchrunWatch


def test_a_pause_of_the_launcher_is_written_down_as_the_diagnosis_reads_it(tmp_path, monkeypatch):
    now, lines = [100.0], []
    monkeypatch.setattr(agent.time, "monotonic", lambda: now[0])
    watch = TorchrunWatch(psutil.Process(), tmp_path / "torchrun.log", 5.0, lines.append)
    for pause_s in (0.9 * PAUSED_S, 60.3, 2.0):
        now[0] += pause_s
        assert watch.look() is None
    assert len(lines) == 2
    assert longest_pause_s("\n".join(lines)) == pytest.approx(60.3)
