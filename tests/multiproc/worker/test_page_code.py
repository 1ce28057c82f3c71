"""The code on the pages that an adopter reads: run here, or lines of a file that is, or plainly a sketch."""

from __future__ import annotations

import ast
import queue
import re
import shutil
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from checkout import EXAMPLES, ROOT

import ppwork as pp
from ppwork.ranks import NOT_YET

pytestmark = [pytest.mark.multiproc, pytest.mark.timeout(240)]  # a launch each

NAMES = ("package", "lessons", "stages", "prototype", "plan", "diagnose", "pipelines")
PAGES = [ROOT / "README.md", *(ROOT / "docs" / f"{name}.md" for name in NAMES)]
BLOCK = re.compile(r"```python\n(.*?)```", re.DOTALL)
TORCHRUN = re.compile(r"torchrun .*?--nproc-per-node (\d+) (\S+\.py)")
RUN = {
    "with join(": "from my_stages import Counter as MyStage0, Scaler as MyGenerator\n",
    "with PPControlPlane.join(": "import torch\n",
    "%%ranks 3": "",
}
"""What a block begins to be told by, and what a program needs before it; each is run on three ranks."""
CALLED = ("def encode(self, chunk_index):", "verify=True))")
"""Blocks that a test below calls."""
CELLS = ("%load_ext ppwork\n", "pp.Plan(**stages, ")
"""Lines of a notebook, which ``test_daily_use`` has in a cell."""


def blocks() -> list[str]:
    return [block for page in PAGES for block in BLOCK.findall(page.read_text())]


def lines_of(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def is_excerpt(block: str) -> bool:
    """Say whether all lines stand in one example, in this order."""
    for path in EXAMPLES.rglob("*.py"):
        rest = iter(lines_of(path.read_text()))
        if all(line in rest for line in lines_of(block)):
            return True
    return False


def is_sketch(block: str) -> bool:
    """Say whether it has dots where its reader fills in, and is Python."""
    code = "\n".join(line for line in block.splitlines() if not line.startswith("%"))
    dots = (isinstance(node, ast.Constant) and node.value is ... for node in ast.walk(ast.parse(code)))
    return any(dots)


def test_every_block_is_run_or_an_excerpt_of_what_is_run_or_a_sketch():
    told = (*RUN, *CALLED, *CELLS)
    unknown = [b for b in blocks() if not (any(t in b for t in told) or is_excerpt(b) or is_sketch(b))]
    assert unknown == []
    assert sum(is_excerpt(block) for block in blocks()) >= 5
    assert not is_excerpt('return {"x": self.tp.all_reduce(twice)}\n')


@pytest.mark.parametrize("told", RUN)
def test_a_whole_program_on_a_page_runs(tmp_path, monkeypatch, told):
    whole = [block for block in blocks() if told in block and not is_sketch(block) and not is_excerpt(block)]
    programs = {"\n".join(block.splitlines()[block.startswith("%") :]) for block in whole}
    assert len(programs) == 1  # on two pages it is the same one
    (tmp_path / "mine.py").write_text(RUN[told] + programs.pop())
    shutil.copy(EXAMPLES / "my_stages.py", tmp_path)
    monkeypatch.chdir(tmp_path)
    assert pp.launch_script("mine.py", nproc=3).exit_code == 0


def test_the_source_on_the_page_waits_a_little_and_then_says_so():
    (block,) = (block for block in blocks() if CALLED[0] in block)
    names = {"queue": queue, "torch": torch, "NOT_YET": NOT_YET}
    exec(block, names)  # noqa: S102  the page's own
    camera = queue.Queue()
    assert names["encode"](SimpleNamespace(camera=camera), 0) is NOT_YET
    camera.put(np.ones(3, np.float32))
    assert names["encode"](SimpleNamespace(camera=camera), 0)["frame"].tolist() == [1, 1, 1]


def test_the_launch_on_the_page_has_the_figures_that_it_shows(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (block,) = (block for block in blocks() if "verify=True))" in block)
    names: dict[str, object] = {}
    exec(block, names)  # noqa: S102  the page's own
    assert isinstance(names["run"], pp.Run)
    assert names["run"].summary["max_abs_diff"] <= 1e-4


def test_the_first_program_overlaps_and_gives_what_the_page_shows(tmp_path):
    shown = re.findall(r"^depth \d: [\d.]+ ms a chunk, (total [\d.]+)$", PAGES[0].read_text(), re.MULTILINE)
    run = pp.launch_script(EXAMPLES / "overlap.py", nproc=3, arguments=("2", str(tmp_path / "run")))
    assert shown == [run.printed(0).strip().rpartition(", ")[2]] * 2
    spans = pp.open(tmp_path / "run").entries(0)
    assert {span.name for span in spans} >= {"encode", "decode", "send"}


def test_the_hang_on_the_pages_is_told_as_they_show_it(tmp_path):
    run = pp.launch_script(EXAMPLES / "hang.py", nproc=3, out=tmp_path / "run", limit_s=8, check=False)
    page = (ROOT / "docs" / "diagnose.md").read_text()
    assert run.failure.headline in page
    said = str(run.failure).splitlines()[-4:]  # each rank's wait, and what to check
    assert [line for line in said if line not in page] == []


def test_every_torchrun_on_a_page_names_a_program_that_tells_the_same_number_of_ranks():
    shown = {match for page in PAGES for match in TORCHRUN.findall(page.read_text())}
    assert len(shown) >= 2
    for ranks, name in shown:
        assert (ranks, name) in TORCHRUN.findall((EXAMPLES / name).read_text())
