"""The start page runs with other parameters, from outside, in its own process."""

from __future__ import annotations

import subprocess
import sys

import nbformat
import pytest
from test_gate import FOLDER

pytestmark = pytest.mark.notebook


def test_start_page_runs_under_papermill_with_another_mesh_size(tmp_path):
    done = tmp_path / "out.ipynb"
    command = [sys.executable, "-m", "papermill", str(FOLDER / "00-start-here.ipynb"), str(done)]
    parameters = ["-p", "mesh_size", "1", "-p", "chunks", "3", "--cwd", str(tmp_path), "-k", "python3"]
    answer = subprocess.run([*command, *parameters], capture_output=True, text=True, timeout=110, check=False)
    assert answer.returncode == 0, answer.stderr[-2000:]
    text = "".join(
        output.get("text", "")
        for cell in nbformat.read(done, as_version=4).cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert "ranks: 2 chunks: 3 frames: 12" in text
    assert "largest difference to one process is within 0.0" in text
