"""A run read back from its folder."""

import msgspec
import numpy as np
import pytest
from safetensors.numpy import save

from ppwork.errors import PlanError, RunFailed, UnreadableError
from ppwork.plan import Plan
from ppwork.records.notes import told_of_metadata
from ppwork.records.outputs import read_outputs
from ppwork.records.run import OUTPUTS_FILE, SAID, SUMMARY_FILE, Run, mesh_notes, metadata_apart
from ppwork.records.spans import Instant, Recorder, Span, span_file

# The folder


def test_run_reads_plan_summary_and_entries(tmp_path):
    plan = Plan(mesh_size=3)
    (tmp_path / Plan.FILE_NAME).write_bytes(plan.to_json())
    (tmp_path / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": 4}))
    with Recorder(span_file(tmp_path, 1)) as recorder:
        recorder.instant("emit")
    run = Run(tmp_path, 0)
    assert run.plan == plan
    assert run.summary == {"chunks": 4}
    assert [entry.name for entry in run.entries(1)] == ["emit"]
    assert run.entries(0) == []
    assert repr(run) == f"Run({str(tmp_path)!r}, ok, chunks=4)"


def test_failed_run_has_no_summary_and_says_so(tmp_path):
    run = Run(tmp_path, 1, RunFailed("It failed."))
    assert run.summary == {}
    assert repr(run) == f"Run({str(tmp_path)!r}, failed, chunks=None)"
    with pytest.raises(PlanError):
        _ = run.plan


# Outputs


@pytest.mark.parametrize("how", ["cut", "of others"])
def test_outputs_that_do_not_read_are_said(tmp_path, how):
    whole = save({"weights": np.zeros(3, np.float32)})
    (tmp_path / OUTPUTS_FILE).write_bytes(whole[:10] if how == "cut" else whole)
    with pytest.raises(UnreadableError, match="do not read") as unread:
        read_outputs(tmp_path)
    assert unread.value.check_first


def said(chunk, **digests):
    return Instant(SAID, "main", 1, chunk, chunk, 0, figures=digests)


def test_metadata_of_mesh_ranks_are_compared_by_key_among_those_that_gave_some():
    other = Span("generate", "main", 1, 2, 4, 4, 0)
    alike = {1: [said(3, cache=7, top=1), other], 2: [said(3, cache=7, top=1)], 3: [other]}
    assert metadata_apart(alike) == {}
    assert told_of_metadata(alike) == ""
    apart = {
        1: [*alike[1], said(5, cache=7, top=1), said(6, cache=8)],
        2: [*alike[2], said(5, cache=9, top=1), said(6, cache=8, note=2)],
        3: alike[3],
    }
    assert metadata_apart(apart) == {5: {"cache": {1: 7, 2: 9}}, 6: {"note": {1: 0, 2: 2}}}
    assert mesh_notes(apart)["metadata_differs"] == [5, 6]
    told = "Mesh ranks gave different metadata with their results in chunks 5 and 6: "
    assert told_of_metadata(apart) == f"{told}'cache' of ranks 1 and 2 differ in chunk 5"
