"""The library taken into somebody's own prototype, under plain torchrun."""

from __future__ import annotations

import pytest
from checkout import EXAMPLES
from plain_torchrun import torchrun

import ppwork as pp

pytestmark = pytest.mark.multiproc


def test_the_example_prototype_runs_under_plain_torchrun(tmp_path):
    assert torchrun(3, EXAMPLES / "own_loop.py") == [
        f"Ids(call_id={k + (k > 5)}, chunk_index={k}, cache_epoch={int(k >= 3)}) {[2.0 * k] * 3} "
        f"chunk {k}, doubled, {1 + k % 3} since the cut"
        for k in range(6)
    ]


def test_with_a_folder_it_leaves_spans_a_summary_and_the_order_that_overlaps(tmp_path):
    torchrun(3, EXAMPLES / "own_loop.py", tmp_path / "run")
    run = pp.open(tmp_path / "run")
    assert run.summary["chunks"] == 6
    assert run.summary["period_ms"] > 0
    # It has no stages, and nothing of the shipped video.
    assert (run.summary["plan"]["in_flight_depth"], run.summary["plan"]["options"]) == (2, {})
    assert (run.plan.stage0, run.plan.stage1, run.plan.is_video) == ("", "", False)
    assert run.summary["plan_digest"] == run.plan.digest  # the trace has this one
    left = {e.chunk_index: e.at_ns for e in run.entries(0) if e.name == "envelope.send" and e.call_id < 6}
    decoded = {e.chunk_index: e.start_ns for e in run.entries(0) if e.name == "decode"}
    assert [*decoded] == [*range(6)]
    assert all(left[k + 2] < decoded[k] for k in range(4))
    assert "period" in run.timeline().finding
