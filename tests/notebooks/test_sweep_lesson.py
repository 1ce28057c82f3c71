"""A real sweep over the first lesson, interrupted and continued; what papermill alone does of a typo."""

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
from anatomy import FOLDER

from ppwork.process import WARM_VARIABLE

pytestmark = pytest.mark.notebook

LESSON = FOLDER / "00-start-here.ipynb"
CHECK = "from ppwork.lab.parameters import only_known_parameters\n\nonly_known_parameters()\n"
LIMIT_S = 200


def start(folder) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "ppwork", "sweep", str(LESSON), "--out", "mine"]
    command += ["--grid", "chunks=2,3", "--set", "mesh_size=1"]
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a background job inherits it ignored
    warm = {**os.environ, WARM_VARIABLE: "1"}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen(command, cwd=folder, env=warm, **pipes)


def table(folder) -> list[dict[str, str]]:
    with (folder / "mine" / "table.csv").open() as file:
        return list(csv.DictReader(file))


def wait_for(fact, process) -> None:
    end = time.monotonic() + LIMIT_S
    while not fact():
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)  # the interval of asking


@pytest.mark.timeout(480)
def test_a_sweep_goes_on_where_ctrl_c_ended_it(tmp_path):
    second = tmp_path / "mine" / "02-chunks=3"
    with start(tmp_path) as first:
        wait_for(lambda: list(second.glob("runs/*/spans-rank0.jsonl")), first)
        family = psutil.Process(first.pid).children(recursive=True)
        os.kill(first.pid, signal.SIGINT)
        said = first.communicate(timeout=30)
        assert first.returncode == 130, said
    _, alive = psutil.wait_procs(family, timeout=5)
    assert not alive
    assert len(family) >= 4  # papermill, kernel, torchrun, ranks
    rows = table(tmp_path)
    assert [row["point_state"] for row in rows] == ["ok", "ok", "interrupted"]  # the lesson has two runs
    period_ms = float(rows[0]["period_ms"])

    with start(tmp_path) as again:
        output, told = again.communicate(timeout=LIMIT_S)
    assert again.returncode == 0, told
    assert "1/2 chunks=2: ok" in told
    assert "It changes most in run " in output
    rows = table(tmp_path)
    assert [(row["param.chunks"], row["point_state"], row["finished"]) for row in rows] == [
        ("2", "ok", "True"),
        ("2", "ok", "True"),
        ("3", "ok", "True"),
        ("3", "ok", "True"),
    ]
    assert float(rows[0]["period_ms"]) == period_ms  # the first point did not run again
    assert (tmp_path / "mine" / "02-chunks=3.before-1" / "runs").is_dir()
    assert (tmp_path / "mine" / "sweep.png").read_bytes().startswith(b"\x89PNG")


def test_a_sweep_refuses_a_wrong_name_before_anything_starts(tmp_path):
    command = [sys.executable, "-m", "ppwork", "sweep", str(LESSON), "--grid", "mesh_siz=1,2"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=30)
    assert answer.returncode == 2
    assert "did you mean 'mesh_size'?" in answer.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "fails"), [("mesh_siz", True), ("mesh_size", False)])
def test_plain_papermill_ends_with_an_error_where_a_notebook_checks_its_names(tmp_path, name, fails):
    """papermill alone warns and goes on with the defaults; one line in the notebook makes it fail."""
    notebook = nbformat.read(LESSON, as_version=4)
    place = next(n for n, cell in enumerate(notebook.cells) if "parameters" in cell.metadata.get("tags", []))
    notebook.cells = [notebook.cells[place], nbformat.v4.new_code_cell(CHECK)]
    nbformat.write(notebook, tmp_path / "in.ipynb")
    command = [sys.executable, "-m", "papermill", "in.ipynb", "out.ipynb", "-k", "python3", "-p", name, "1"]
    answer = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=60)
    assert (answer.returncode != 0) == fails
    assert ("There is no parameter 'mesh_siz' in this notebook" in answer.stderr) == fails
