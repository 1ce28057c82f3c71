"""The page on Slurm on a real one: its cells run, and show what the committed ones do."""

from __future__ import annotations

import re

import nbformat
import pytest
from slurm import needs_slurm, slurm_of_two
from slurm_page import PAGE, executed

from ppwork.process import HOST_LOST, STOPPED
from ppwork.records.run import LaunchEnd

pytestmark = [pytest.mark.multiproc, pytest.mark.cold, pytest.mark.timeout(600), needs_slurm]
VIEWED = ("run = pp.attach", "cancelled = pp.attach", "here = pp.launch", "lost = pp.attach")


def shown(path, begin) -> str:
    """What the cell that has this line shows, with the words of its pictures."""
    cells = nbformat.read(path, as_version=4).cells
    (cell,) = (cell for cell in cells if cell.cell_type == "code" and begin in cell.source)
    bundles = [output.get("data") or {"text/plain": output.get("text", "")} for output in cell.outputs]
    return "\n".join(text for bundle in bundles for kind, text in bundle.items() if kind.startswith("text/"))


def test_the_page_is_what_slurm_does(tmp_path):
    with slurm_of_two(tmp_path) as slurm:
        page = executed(slurm, tmp_path)
    runs = tmp_path / "runs" / "slurm"
    ends = {path.name: LaunchEnd.load(path).exit_code for path in runs.iterdir()}
    assert ends == {"clip": 0, "cancelled": STOPPED, "before": 0, "here": 0, "lost": HOST_LOST}
    for path in (page, PAGE):
        assert "cancelled: PENDING (Resources)" in shown(path, "for job in (first, second)")
        assert "hosta: ranks [0]" in shown(path, "largest difference")
        assert "CANCELLED" in shown(path, "print(cancelled.failure)")
        assert "s in the queue" in shown(path, "here = pp.launch")
        assert "Host hostb (ranks 1 and 2) was not heard" in shown(path, "pp.diagnose(lost)")
        for line in VIEWED:
            assert "follower" in (view := shown(path, line))
            assert "busy" not in view  # none of them goes on
        assert "/tmp" not in re.sub(r"base64,[^\"]*", "", path.read_text())  # names no folder of a machine
