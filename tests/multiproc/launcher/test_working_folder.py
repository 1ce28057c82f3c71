"""Files of the working folder replace no module: a downloaded `queue.py` runs in no process of ours."""

from __future__ import annotations

import subprocess
import sys

import pytest

import ppwork as pp
from ppwork.lab.doctor.machine import probe
from ppwork.process import WARM_VARIABLE

pytestmark = [pytest.mark.multiproc, pytest.mark.timeout(240)]  # cold: five imports of torch
NAMES = ("json", "msgspec", "psutil", "queue", "random", "tempfile", "token", "torch")
PROGRAM = """\
import os, subprocess, sys
import neighbour
import torch.distributed as dist
dist.init_process_group("gloo")
print(neighbour.WORD, flush=True)
child = subprocess.run([sys.executable, neighbour.__file__], stdin=subprocess.DEVNULL)
dist.barrier()  # nobody leaves while another one still connects
dist.destroy_process_group()
sys.exit(child.returncode)
"""
NEIGHBOUR = "import another\nWORD = another.WORD\n"
STAGES = "from ppwork.workloads.synthetic import SyntheticGenerator as Mesh, SyntheticSource as Source\n"


@pytest.fixture
def full(tmp_path, monkeypatch):
    """A working folder with modules of such names; one that is imported says so and ends the process."""
    folder = tmp_path / "full"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(f"print('{name} of the working folder')\nraise SystemExit(9)\n")
    monkeypatch.chdir(folder)
    return folder


def test_shipped_stages_and_the_probe_import_nothing_of_the_working_folder(full, tmp_path, monkeypatch):
    monkeypatch.setenv(WARM_VARIABLE, "0")
    command = [
        sys.executable, "-P", "-m", "ppwork", "run", "--workload", "synthetic", "--chunks",
        "2", "--mesh-size", "1", "--verify", "--backend", "gloo", "--stage1-ms", "1",
        "--out", str(tmp_path / "run"),
    ]  # fmt: skip
    told = subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "of the working folder" not in "".join(path.read_text() for path in tmp_path.glob("run/*.log"))
    assert probe(60.0).errors == {}


@pytest.mark.parametrize("warm", [False, True])
def test_a_program_finds_its_neighbours_and_so_do_its_own_children(full, tmp_path, monkeypatch, warm):
    if not warm:
        monkeypatch.setenv(WARM_VARIABLE, "0")
    program = tmp_path / "its" / "program.py"
    program.parent.mkdir()
    program.write_text(PROGRAM)
    (program.parent / "neighbour.py").write_text(NEIGHBOUR)
    (program.parent / "another.py").write_text("WORD = 'found'\n")
    run = pp.launch_script(program, nproc=1, out=tmp_path / "run")
    assert run.printed(0) == "found\n"


def test_stages_of_ones_own_are_found_in_the_working_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(STAGES)
    monkeypatch.chdir(tmp_path)
    plan = pp.Plan(stage0="mine:Source", stage1="mine:Mesh", chunks=2, mesh_size=1, backend="gloo")
    assert pp.launch(plan, out=tmp_path / "run").summary["chunks"] == 2
