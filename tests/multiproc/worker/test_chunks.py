"""A source that decides about steps, cuts and metadata of each chunk; stages with the needed methods only."""

from __future__ import annotations

import pytest
from toy_runs import toy

import ppwork as pp
from ppwork.records.failure import read_records

pytestmark = pytest.mark.multiproc


def test_what_the_stages_say_of_a_chunk_reaches_each_other_and_the_reference(tmp_path):
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
    assert [e.figures["seen"] for e in run.entries(0) if e.name == "emit"] == [1.0, 2.0, 1.0, 2.0]
    assert [e.cache_epoch for e in run.entries(0) if e.name == "emit"] == [0, 0, 1, 1]
    assert run.summary["verified_chunks"] == 4
    assert run.summary["max_abs_diff"] == 0.0


def test_metadata_of_a_result_that_cannot_travel_is_refused_before_it_leaves(tmp_path):
    """R1: the leader names the key, and rank 0 hears of it in place of a result."""
    plan = toy(
        chunks=2,
        options={"scale": 1.0},
        stage0="chunk_stages:Director",
        stage1="chunk_stages:Chatterbox",
        verify=False,
    )
    with pytest.raises(pp.RunFailed, match=r"at metadata\['me'\]\['is'\] an object of type Chatterbox"):
        pp.launch(plan, out=tmp_path / "run")
    records = {record.rank: record for record in read_records(tmp_path / "run", 3)}
    assert (records[1].error_type, records[1].where["chunk_index"]) == ("LocalProtocolError", 0)
    assert records[0].error_type == "TerminalNotice"
