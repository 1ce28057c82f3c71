"""A cell with stages becomes a file that ranks can import, or is refused with what they would lack."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import ppwork as pp
from ppwork.lab import stages_cell
from ppwork.lab.stages_cell import stages

CELL = """
import torch
from ppwork.stage import Emission

SCALE = 2.0


class Source:
    def __init__(self, context):
        self.seen = [index for index in range(3)]

    def encode(self, chunk_index):
        return {"x": torch.full((3,), float(chunk_index))}

    def decode(self, chunk_index, tensors):
        return Emission(tensors["x"])


class Base:
    def step(self, tensors, step_index, num_steps):
        return {"x": tensors["x"] * SCALE}


class Block(Base):
    def __init__(self, context):
        super().__init__()
"""


@pytest.fixture
def given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    variables: dict[str, object] = {}
    monkeypatch.setattr(stages_cell, "give", lambda name, value: variables.update({name: value}))
    return variables


def test_a_cell_becomes_a_file_and_its_stages_import_paths(given, tmp_path, capsys):
    stages("cell_stages.py --stage1 Block", CELL)
    assert given == {"stages": {"stage0": "cell_stages:Source", "stage1": "cell_stages:Block"}}
    assert (tmp_path / "cell_stages.py").read_text().startswith(CELL)
    assert "cell_stages:Source" in capsys.readouterr().out
    stages("cell_stages.py --stage1 Base --as again", CELL.replace("2.0", "3.0"))
    assert given["again"]["stage1"] == "cell_stages:Base"
    assert pp.Plan(**given["again"]).stage0 == "cell_stages:Source"


@pytest.mark.parametrize(
    ("line", "cell", "said"),
    [
        ("", CELL, "2 classes for stage1: Base and Block"),
        ("--stage1 Other", CELL, "no class Other"),
        ("", "x = 1\n", "has no stage"),
        ("", CELL.replace("SCALE = 2.0", "") + "\n", r"reads SCALE \(line"),
        ("--stage1 Block", CELL + "display(SCALE)\n", "reads display"),
        ("", "!ls\n" + CELL, "no module: invalid syntax in its line 1: !ls"),
        ("json.py", CELL, "a module json already"),
        ("sub/mine.py", CELL, "from the working folder"),
        ("my-stages.py", CELL, "from the working folder"),
        ("--depth 2", CELL, "%%stages did not understand its line"),
        ("it's", CELL, "%%stages did not understand its line: No closing quotation"),
    ],
)
def test_what_ranks_would_lack_is_refused_before_anything_is_written(given, tmp_path, line, cell, said):
    with pytest.raises(pp.PlanError, match=said):
        stages(line, cell)
    assert list(tmp_path.iterdir()) == []
    assert given == {}


def test_a_file_that_no_cell_wrote_stays(given, tmp_path):
    (tmp_path / "my_stages.py").write_text("mine = 1\n")
    with pytest.raises(pp.PlanError, match="not overwritten"):
        stages("--stage1 Block", CELL)


def test_names_bound_in_any_way_are_not_missing(given):
    stages(
        "",
        "from math import *\nclass S:\n    def step(self, t, i, n): return pi\n",
    )
    stages(
        "",
        "import os.path as p\ntry:\n    import json as j\nexcept ImportError as e:\n    j = None\n"
        "def f(a, *b, c=1, **d):\n    global g\n    g = [x for x in b]\n    return (lambda y: y + a + c)(d)\n"
        "class S:\n    k: int = 3\n"
        "    def step(self, t, i, n):\n        return {p: j, __name__: g, f: self.k}\n",
    )


@pytest.mark.parametrize("path", [dict, "__main__:Source"])
def test_a_class_of_the_notebook_is_refused_by_the_plan(path):
    with pytest.raises(pp.PlanError, match="an import path") as refused:
        pp.Plan(stage0=path)
    assert "%%stages" in refused.value.check_first


@pytest.mark.processes
def test_a_cell_that_changes_within_a_second_is_the_one_that_is_imported(tmp_path, monkeypatch):
    """Python would take the bytecode of the cell before: same length, same second."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    scales = []
    for scale in ("2.0", "5.0"):
        stages("within_a_second.py --stage1 Block", CELL.replace("2.0", scale))
        os.utime("within_a_second.py", (1_700_000_000, 1_700_000_000))
        shown = "import within_a_second; print(within_a_second.SCALE)"
        done = subprocess.run([sys.executable, "-c", shown], capture_output=True, text=True, check=True)
        scales.append(done.stdout.strip())
    assert scales == ["2.0", "5.0"]
