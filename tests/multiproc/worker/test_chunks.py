"""A source that decides about steps, cuts and metadata of each chunk; stages with the needed methods only."""

from __future__ import annotations

import pytest
from toy_runs import toy

import ppwork as pp

pytestmark = pytest.mark.multiproc


def test_what_the_source_says_of_a_chunk_reaches_step_and_decode_and_the_reference(tmp_path):
    plan = toy(
        chunks=4,
        in_flight_depth=2,
        options={"scale": 10.0},
        stage0="chunk_stages:Director",
        stage1="chunk_stages:Actor",
    )
    run = pp.launch(plan, out=tmp_path / "run")
    emitted = [e.figures["x"] for e in run.entries(0) if e.name == "emit"]
    # k + 10 k a step + 100 for each chunk of the scene; chunk 1 takes three steps, chunk 2 begins a scene.
    assert emitted == [100.0, 1 + 30 + 200.0, 2 + 20 + 100.0, 3 + 30 + 200.0]
    assert [e.cache_epoch for e in run.entries(0) if e.name == "emit"] == [0, 0, 1, 1]
    assert run.summary["verified_chunks"] == 4
    assert run.summary["max_abs_diff"] == 0.0
