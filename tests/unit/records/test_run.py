"""A run read back from its folder."""

import msgspec
import pytest

from ppwork.errors import PlanError, RunFailed
from ppwork.plan import Plan
from ppwork.records.run import SUMMARY_FILE, Run, rows_of
from ppwork.records.spans import Instant, Recorder, span_file

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


@pytest.mark.parametrize(("came", "said"), [(5, "5 of 8 (encode returned None), "), (8, "8, ")])
def test_a_source_that_ended_before_its_time_shows(tmp_path, came, said):
    """A forgotten `return` of encode ended a run of 20 chunks after 5, and nothing said so."""
    Plan(mesh_size=2, chunks=8).save(tmp_path)
    (tmp_path / SUMMARY_FILE).write_bytes(msgspec.json.encode({"chunks": came}))
    with Recorder(span_file(tmp_path, 0)) as recorder:
        for chunk in range(came):
            recorder.write(Instant("emit", "main", chunk, chunk_index=chunk))
    assert dict(rows_of(Run(tmp_path, 0)))["chunks"].startswith(said)
