"""A real sweep over a small notebook, interrupted and continued."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time

import nbformat
import psutil
import pytest
from launched_jobs import all_gone

from ppwork.process import WARM_VARIABLE
from ppwork.records.pulse import read_pulse

pytestmark = pytest.mark.notebook

PARAMETERS = """\
mesh_size: int = 2  # ranks of stage 1
chunks: int = 2  # of each run"""
RUNS = """\
import ppwork as pp

pp.lesson.only_known_parameters()
times = {"encode_ms": 15.0, "decode_ms": 15.0, "stage1_ms": 30.0, "payload_mb": 0.1}
plan = pp.synthetic(pp.Plan(mesh_size=mesh_size, chunks=chunks, backend="gloo"), **times)
for depth in (1, 2):
    pp.launch(plan.replace(in_flight_depth=depth))"""
"""Two runs, as a lesson has several; that lessons run under papermill is in ``test_papermill.py``."""
LONG = 40
"""Chunks of the second point: more than two seconds in which Ctrl-C comes upon its first run."""
LIMIT_S = 200


@pytest.fixture(autouse=True)
def lesson(tmp_path):
    notebook = nbformat.v4.new_notebook(
        metadata={"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    )
    notebook.cells = [nbformat.v4.new_code_cell(source) for source in (PARAMETERS, RUNS)]
    notebook.cells[0].metadata["tags"] = ["parameters"]
    nbformat.write(notebook, tmp_path / "lesson.ipynb")


def start(folder, launcher) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ppwork", "sweep", "lesson.ipynb", "--out", "mine"]
    command += ["--grid", f"chunks=2,{LONG}", "--set", "mesh_size=1"]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it ignored
    warm = {**os.environ, WARM_VARIABLE: str(launcher.address)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=warm, **pipes)


def table(folder) -> list[dict[str, str]]:
    with (folder / "mine" / "table.csv").open() as file:
        return list(csv.DictReader(file))


def wait_for(fact, process):
    end = time.monotonic() + LIMIT_S
    while not (found := fact()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)  # the interval of asking
    return found


def ranks_in(point) -> list[psutil.Process]:
    """The two ranks of a point's first run, once both are there and rank 0 has begun."""
    for spans in point.glob("runs/*/spans-rank0.jsonl"):
        pulses = [read_pulse(spans.parent, rank) for rank in range(2)]
        return [pulse.process() for pulse in pulses] if all(pulses) else []
    return []


@pytest.mark.timeout(480)
def test_a_sweep_goes_on_where_ctrl_c_ended_it(tmp_path, kernel_launcher):
    second = tmp_path / "mine" / f"02-chunks={LONG}"
    with start(tmp_path, kernel_launcher) as first:
        ranks = wait_for(lambda: ranks_in(second), first)
        family = [*psutil.Process(first.pid).children(recursive=True), ranks[0].parent(), *ranks]
        os.kill(first.pid, signal.SIGINT)
        said = first.communicate(timeout=30)
        assert first.returncode == 130, said
    assert all_gone(family, 5.0) == []
    assert len(family) >= 5  # papermill, kernel, torchrun, ranks
    rows = table(tmp_path)
    assert [row["point_state"] for row in rows] == ["ok", "ok", "interrupted"]
    period_ms = float(rows[0]["period_ms"])

    with start(tmp_path, kernel_launcher) as again:
        output, told = again.communicate(timeout=LIMIT_S)
    assert again.returncode == 0, told
    assert "1/2 chunks=2: ok" in told
    assert "It changes most in run " in output
    rows = table(tmp_path)
    assert [(row["param.chunks"], row["point_state"], row["finished"]) for row in rows] == [
        ("2", "ok", "True"),
        ("2", "ok", "True"),
        (str(LONG), "ok", "True"),
        (str(LONG), "ok", "True"),
    ]
    assert float(rows[0]["period_ms"]) == period_ms  # the first point did not run again
    assert (tmp_path / "mine" / f"02-chunks={LONG}.before-1" / "runs").is_dir()
    assert (tmp_path / "mine" / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_a_sweep_refuses_a_wrong_name_before_anything_starts(tmp_path):
    command = [sys.executable, "-m", "ppwork", "sweep", "lesson.ipynb", "--grid", "mesh_siz=1,2"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
    assert answer.returncode == 2
    assert "did you mean 'mesh_size'?" in answer.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["lesson.ipynb"]
