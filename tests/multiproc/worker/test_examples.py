"""The programs that adopters begin with, run as they are told to run them."""

from __future__ import annotations

import ast
import re

import pytest
from checkout import EXAMPLES, ROOT
from plain_torchrun import torchrun

import ppwork as pp
from ppwork.records.run import log_file

pytestmark = pytest.mark.multiproc

PORTING = EXAMPLES / "porting"
MOST_LINES = {"plain": 70, "own_loop": 30, "stages": 25}


def test_two_pipelines_in_one_job_have_a_folder_each_and_leave_the_jobs_group_alone(tmp_path):
    said = torchrun(6, EXAMPLES / "two_pipelines.py", tmp_path)
    total = 4 * sum(10 * k + k + 1 for k in range(4))
    assert said == [f"both pipelines: {2.0 * total}"]
    for name in ("first", "second"):
        assert pp.open(tmp_path / name).summary["figures"]["total"] == total


def test_a_live_source_decides_about_cuts_flushes_steps_and_the_end():
    every = {
        0: "chunk 0: a cat, frame 1 of its scene, 1 steps",
        1: "chunk 1: a cat, frame 2 of its scene, 2 steps",
        2: "chunk 2: a cat, frame 3 of its scene, 2 steps",
        3: "chunk 3: a dog, frame 1 of its scene, 1 steps",
        4: "chunk 4: a dog, frame 2 of its scene, 2 steps",
        5: "chunk 5: no, a bird!, frame 1 of its scene, 1 steps",
        6: "chunk 6: no, a bird!, frame 2 of its scene, 2 steps",
    }
    said = torchrun(3, EXAMPLES / "live_source.py")
    # At the flush two chunks at most are on their way, and whether they are is the machine's to say.
    dropped = set(every.values()) - set(said)
    assert dropped <= {every[3], every[4]}
    assert said == [line for line in every.values() if line not in dropped]


def test_a_llama_split_by_torch_says_in_both_sessions_what_it_says_in_one_process():
    """A cache on the mesh, DTensors that outlive the session, and no new process."""
    said = torchrun(3, EXAMPLES / "llama_dtensor.py")
    words = [re.fullmatch(r"session \d: (.*) as in one process", line) for line in said]
    assert all(words), said
    first, second = (ast.literal_eval(match[1]) for match in words)
    assert first == second
    assert len({*first[0], *first[1]}) > 2  # a model that says one word only would prove nothing


@pytest.fixture(scope="module")
def plain():
    """What the script without a library says."""
    return torchrun(3, PORTING / "plain.py")


def test_the_port_to_an_own_loop_says_the_same(plain):
    assert len(plain) == 8
    assert torchrun(3, PORTING / "own_loop.py") == plain


def test_the_port_to_stages_says_the_same_at_depth_2(plain, tmp_path, monkeypatch):
    monkeypatch.chdir(PORTING)
    plan = pp.Plan(
        mesh_size=2, chunks=8, in_flight_depth=2, backend="gloo", stage0="stages:Ends", stage1="stages:Mlp"
    )
    run = pp.launch(plan, out=tmp_path / "run")
    log = log_file(run.run_dir, 0).read_text().splitlines()
    assert [line for line in log if re.fullmatch(r"\d [\d.]+", line)] == plain


def lines_of(name: str) -> int:
    """Count the lines of a script that are neither blank, nor comment, nor docstring."""
    text = (PORTING / f"{name}.py").read_text()
    code = ast.parse(text)
    code.body = [node for node in code.body if not isinstance(node, ast.Expr)]
    first = code.body[0].lineno
    return sum(
        bool(line.strip()) and not line.strip().startswith("#") for line in text.splitlines()[first - 1 :]
    )


@pytest.mark.parametrize("name", MOST_LINES)
def test_a_port_is_short_and_the_page_says_how_short(name):
    count = lines_of(name)
    assert count <= MOST_LINES[name]
    page = (ROOT / "docs" / "prototype.md").read_text()
    assert re.search(rf"porting/{name}\.py\) \| {count} \|", page)
