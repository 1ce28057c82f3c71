"""What in a lesson depends on its parameters, run with others, from outside, in a process of its own."""

from __future__ import annotations

import ast
import os
import subprocess
import sys

import nbformat
import pytest
from anatomy import FOLDER, code_cells

from ppwork.process import WARM_VARIABLE

pytestmark = [pytest.mark.notebook, pytest.mark.timeout(420)]
LIMIT_S = 400
OVERLAP = "05-how-do-i-overlap-and-how-do-i-know.ipynb"


def names_in(source: str) -> tuple[set[str], set[str]]:
    """Return the names that a cell takes from those before it, and those that it gives a value."""
    if source.startswith("%%"):  # a program of ranks sees none of them
        return set(), set()
    lines = [line for line in source.splitlines() if not line.startswith("%")]
    nodes = [*ast.walk(ast.parse("\n".join(lines)))]
    read = {node.id for node in nodes if isinstance(node, ast.Name)}
    given = {node.id for node in nodes if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    given |= {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
    return read - given - {node.arg for node in nodes if isinstance(node, ast.arg)}, given


def dependent(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Keep the cells that depend on a parameter, and what those need: elsewhere all of them run."""
    cells = code_cells(notebook)
    names = [names_in(cell.source) for cell in cells]
    changed, kept, needed = set(names[0][1]), {0, 1}, set[str]()
    for number, (read, given) in enumerate(names):
        if read & changed:
            kept.add(number)
            changed |= given
        elif number:
            changed -= given
    for number, (read, given) in reversed([*enumerate(names)]):
        if number in kept or given & needed:
            kept.add(number)
            needed = needed - given | read
    notebook.cells = [cell for number, cell in enumerate(cells) if number in kept]
    return notebook


def run_with(name: str, folder, launcher, **parameters) -> str:
    """Run a lesson's part warm in an empty folder; return all that its cells printed or showed as text."""
    part, done = folder / name, folder / "out.ipynb"
    nbformat.write(dependent(nbformat.read(FOLDER / name, as_version=4)), part)
    command = [sys.executable, "-m", "papermill", str(part), str(done), "--cwd", str(folder)]
    chosen = [word for key, value in parameters.items() for word in ("-p", key, str(value))]
    answer = subprocess.run(
        [*command, "-k", "python3", *chosen],
        env={**os.environ, WARM_VARIABLE: str(launcher.address)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-2000:]
    return "".join(
        output.get("text", "") + output.get("data", {}).get("text/plain", "")
        for cell in nbformat.read(done, as_version=4).cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )


def test_sequential_lesson_holds_for_another_mesh_and_other_times(tmp_path, kernel_launcher):
    """What its cells expect is the test."""
    times = {"encode_ms": 30.0, "decode_ms": 10.0, "stage1_ms": 60.0, "payload_mb": 0.1}
    name = "04-what-does-the-sequential-pipeline-cost.ipynb"
    text = run_with(name, tmp_path, kernel_launcher, mesh_size=1, chunks=8, **times)
    assert "depth: 1 ranks: 2" in text
    assert "three times as fast" in text


def test_overlap_lesson_holds_for_another_mesh_and_without_a_third_depth(tmp_path, kernel_launcher):
    """What its cells expect is the test."""
    few = {"chunks": 8, "video_chunks": 3}
    text = run_with(OVERLAP, tmp_path, kernel_launcher, mesh_size=3, in_flight_depth=1, **few)
    assert "ranks: 4 depths: [1, 2]" in text
    assert "chunks compared: 3" in text


def test_a_lesson_refuses_a_parameter_that_it_does_not_have(tmp_path):
    command = [sys.executable, "-m", "papermill", str(FOLDER / OVERLAP), "out.ipynb", "-k", "python3"]
    answer = subprocess.run(
        [*command, "-p", "depth", "4"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert answer.returncode != 0
    assert "There is no parameter 'depth' in this notebook" in answer.stderr
    assert not (tmp_path / "runs").exists()
