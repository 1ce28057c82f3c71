"""Benchmarks whose own file is the program of ranks: their ranks start, measure, and write it down."""

from __future__ import annotations

import subprocess
import sys

import pytest
from checkout import BENCHMARKS

from ppwork.launcher.torchrun import child_environment
from ppwork.launcher.warm import WarmLauncher
from ppwork.process import WARM_VARIABLE

pytestmark = pytest.mark.multiproc


@pytest.fixture(scope="module")
def launcher(warm_unless_marked_cold):
    """A warm launcher with the path that a benchmark gives to its ranks."""
    started = WarmLauncher({**child_environment(1), "PYTHONPATH": str(BENCHMARKS)})
    yield started
    started.close()


@pytest.fixture
def common(monkeypatch, launcher):
    monkeypatch.setenv(WARM_VARIABLE, str(launcher.address))
    monkeypatch.syspath_prepend(BENCHMARKS)
    monkeypatch.delitem(sys.modules, "common", raising=False)
    monkeypatch.setenv("PYTHONPATH", "")  # the module adds to it: put back after the test
    yield __import__("common")
    sys.modules.pop("common", None)


@pytest.mark.parametrize(("script", "options"), [("transport.py", ["--rounds", "1"]), ("pause.py", [])])
def test_its_ranks_measure(common, script, options):
    assert common.measured_by_ranks(str(BENCHMARKS / script), *options, ranks=2, limit_s=100)


def test_a_folder_for_results_that_cannot_be_one_is_refused_before_anything_runs(tmp_path):
    (tmp_path / "file").write_text("")
    command = [sys.executable, str(BENCHMARKS / "transport.py"), "--results", str(tmp_path / "file")]
    refused = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert refused.returncode == 2
    assert "can be no folder for results" in refused.stderr
