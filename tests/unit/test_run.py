"""A run read back from its folder, and what is said first when it failed."""

import msgspec
import pytest

from ppwork.errors import PlanError, RunFailed
from ppwork.failure import FailureRecord, write_record
from ppwork.plan import Plan
from ppwork.run import SUMMARY_FILE, TORCHRUN_LOG, Run, diagnose, exit_codes, unexplained
from ppwork.timeline import Recorder, span_file
from ppwork.topology import Topology

REPORT = """\
[rank1]: ValueError: something in a log line, rank : 7 is no report
W1121 05:00:00.000000 4100 torch/distributed/elastic/multiprocessing/api.py:1010] Sending process 4107 closing
E1121 05:00:00.100000 4100 torch/distributed/elastic/api.py:984] failed (exitcode: -9) local_rank: 2
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
ppwork FAILED
------------------------------------------------------------
Failures:
[1]:
  time      : 2026-11-21_05:00:00
  host      : localhost
  rank      : 1 (local_rank: 1)
  exitcode  : 3 (pid: 4108)
  error_file: <N/A>
  traceback : To enable traceback see: https://pytorch.org/docs/stable/elastic/errors.html
[2]:
  time      : 2026-11-21_05:00:01
  host      : localhost
  rank      : 0 (local_rank: 0)
  exitcode  : -15 (pid: 4107)  (SIGTERM)
  error_file: <N/A>
  traceback : Signal 15 (SIGTERM) received by PID 4107
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-11-21_05:00:00
  host      : localhost
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 4109)  (SIGKILL)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 4109
============================================================
"""


def record(rank, **changes):
    fields = {
        "error_type": "StageError",
        "what": f"Rank {rank} broke.\nmore lines",
        "where": {"rank": rank, "chunk_index": 3},
        "check_first": "the traceback",
        "symptom": False,
        "at_ns": 5,
        "traceback": "",
    }
    return FailureRecord(rank=rank, **{**fields, **changes})


# torchrun's report


def test_exit_codes_are_read_from_the_report():
    assert exit_codes(REPORT) == {0: -15, 1: 3, 2: -9}


def test_exit_codes_are_empty_without_a_report():
    assert exit_codes("") == {}
    assert exit_codes("rank 1 says hello\nexitcode unknown\n") == {}


def test_exit_codes_do_not_mistake_a_print_for_the_report():
    assert exit_codes("rank : 5\nhello\nexitcode : 4\n" + REPORT) == {0: -15, 1: 3, 2: -9}


def test_silent_death_is_explained_by_its_signal_or_code():
    """A rank killed by the out-of-memory killer leaves no record."""
    found = {one.rank: one for one in unexplained({1: -9, 2: 7, 3: -99}, [])}
    assert found[1].what == "Rank 1 was killed by SIGKILL and left no record."
    assert found[2].what == "Rank 2 exited with code 7 and left no record."
    assert found[3].what == "Rank 3 was killed by signal 99 and left no record."
    assert {one.error_type for one in found.values()} == {"RankDied"}
    assert not any(one.symptom for one in found.values())


def test_rank_that_spoke_or_was_terminated_or_ended_well_is_not_unexplained():
    """torchrun sends SIGTERM to the survivors."""
    assert unexplained({0: 0, 1: -15, 2: 1}, [record(2)]) == []


# Diagnosis


def test_diagnosis_begins_with_the_first_failing_rank_its_error_and_its_log(tmp_path):
    write_record(
        tmp_path, record(0, error_type="PeerLostError", symptom=True, at_ns=1, what="The link broke.")
    )
    write_record(tmp_path, record(2, at_ns=9, source="my_stages.py:7"))
    failed = diagnose(tmp_path, Topology(2), 1)
    assert isinstance(failed, RunFailed)
    assert failed.what.splitlines() == [
        "Rank 2 (follower) failed first: StageError: Rank 2 broke.",
        "more lines",
        f"  log: {tmp_path / 'rank2.log'}",
        "  at: my_stages.py:7",
        "  then rank 0: PeerLostError: The link broke.",
    ]
    assert failed.where == {"rank": 2, "chunk_index": 3}
    assert failed.check_first == "the traceback"


def test_diagnosis_lists_the_others_by_time_in_one_line_each(tmp_path):
    for rank, at_ns in ((0, 30), (1, 10), (2, 20)):
        write_record(tmp_path, record(rank, at_ns=at_ns))
    lines = diagnose(tmp_path, Topology(2), 1).what.splitlines()
    assert lines[0].startswith("Rank 1 (leader) failed first")
    assert lines[-2:] == [
        "  then rank 2: StageError: Rank 2 broke.",
        "  then rank 0: StageError: Rank 0 broke.",
    ]


def test_diagnosis_names_the_killed_rank_before_the_ones_that_noticed(tmp_path):
    (tmp_path / TORCHRUN_LOG).write_text(REPORT)
    write_record(tmp_path, record(1, error_type="PeerLostError", symptom=True, what="Rank 2 is gone."))
    failed = diagnose(tmp_path, Topology(2), 1)
    assert failed.what.startswith("Rank 2 (follower) failed first: RankDied: Rank 2 was killed by SIGKILL")
    assert "then rank 1: PeerLostError: Rank 2 is gone." in failed.what
    assert "then rank 0" not in failed.what
    assert failed.where == {"rank": 2}


def test_diagnosis_points_at_the_log_when_the_record_gives_no_hint(tmp_path):
    write_record(tmp_path, record(1, check_first=""))
    assert diagnose(tmp_path, Topology(1), 1).check_first == str(tmp_path / "rank1.log")


def test_diagnosis_without_any_record_shows_the_end_of_torchruns_log(tmp_path):
    failed = diagnose(tmp_path, Topology(1), 2)
    assert failed.what.startswith("torchrun ended with code 2 and no rank left a record.")
    (tmp_path / TORCHRUN_LOG).write_bytes(b"\n".join(b"line %d \xff" % n for n in range(9)) + b"\n")
    failed = diagnose(tmp_path, Topology(1), 2)
    assert "line 8" in failed.what
    assert "line 4" in failed.what
    assert "line 3" not in failed.what
    assert failed.check_first == str(tmp_path / TORCHRUN_LOG)


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
