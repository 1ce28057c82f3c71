"""What ``ppwork new`` writes runs at once: by the command line, under torchrun, in its own test."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from plain_torchrun import torchrun

import ppwork as pp
from ppwork.lab.starter import new_project

pytestmark = pytest.mark.multiproc


@pytest.fixture
def run(tmp_path):
    new_project(tmp_path / "mine")

    def command(*words: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTEST_ADDOPTS": ""}
        return subprocess.run(
            [sys.executable, "-m", *words], cwd=tmp_path / "mine", env=environment, check=False,
            capture_output=True, text=True, timeout=110,
        )  # fmt: skip

    return command


def test_a_new_project_passes_its_own_test(run):
    ended = run("pytest", "-q", "-p", "no:randomly", "test_pipeline.py")
    assert ended.returncode == 0, ended.stdout
    assert "2 passed" in ended.stdout


def test_a_new_project_runs_under_torchrun_and_keeps_its_records(run, tmp_path):
    said = torchrun(3, tmp_path / "mine" / "own_torchrun.py", "runs/mine", "--chunks", "3")
    assert len(pp.open(tmp_path / "mine" / "runs" / "mine").entries(0)) > 0
    assert "energy" in "\n".join(said)
