"""Our planes and stages in a program of one's own: what it leaves, and what it says when it ends wrongly."""

from __future__ import annotations

import ast

import pytest
from checkout import EXAMPLES, ROOT, SUPPORT
from plain_torchrun import torchrun

import ppwork as pp
from ppwork.pictures.timelines import timeline_files
from ppwork.records.failure import read_records

pytestmark = pytest.mark.multiproc


def test_the_example_leaves_a_run_that_the_notebook_side_reads(tmp_path):
    (said,) = torchrun(3, EXAMPLES / "prototype.py", tmp_path / "run", folder=tmp_path)
    total = 4 * sum(10 * k + k + 1 for k in range(6))
    assert ast.literal_eval(said) == {"total": total}
    run = pp.open(str(tmp_path / "run"))
    assert (run.summary["chunks"], run.summary["figures"]["total"]) == (6, total)
    assert run.summary["plan"]["in_flight_depth"] == 2
    assert "Nothing failed" in pp.diagnose(run.run_dir).text
    assert "median" in timeline_files(run.plan, run.entries_by_rank, "mine")["timeline.txt"].decode()
    assert read_records(run.run_dir, 3) == []


WRONG_ENDS = {
    "rank 0 returns": (0, "The block was left without `shutdown()`, after 2 chunks."),
    "leader returns": (1, "The block was left without `acknowledge()`, after 2 chunks."),
    "no answer": (1, "Chunk 1 was received, and no result was sent for it."),
    "no acknowledgement": (1, "The block was left without `acknowledge()`, after 3 chunks."),
}


@pytest.mark.parametrize("case", WRONG_ENDS)
def test_a_loop_that_ends_wrongly_is_named_on_the_rank_that_left(tmp_path, start_ranks, case):
    rank, what = WRONG_ENDS[case]
    run_dir = tmp_path / "run"
    codes = start_ranks([[str(SUPPORT / "left_loops.py"), case, str(run_dir)]] * 2).wait()
    assert codes[rank] == 1
    causes = [record for record in read_records(run_dir, 2) if not record.symptom]
    assert [(record.rank, record.what) for record in causes] == [(rank, what)]
    assert causes[0].where["role"] == ("stage0", "leader")[rank]


def test_the_page_and_the_examples_import_from_one_place():
    page = (ROOT / "docs" / "prototype.md").read_text()
    names = ("own_loop", "prototype", "two_pipelines", "live_source", "llama_dtensor", "porting/own_loop")
    texts = [page, *((EXAMPLES / f"{name}.py").read_text() for name in names)]
    for text in texts:
        ours = [line for line in text.splitlines() if line.startswith("from ppwork")]
        assert ours
        assert all(line.startswith("from ppwork.ranks import") for line in ours)
