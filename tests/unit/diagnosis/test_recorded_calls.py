"""What the calls of a program add to the diagnosis of its logs."""

from __future__ import annotations

from pathlib import Path

import pytest
from captured_logs import log_dir
from made_calls import FLOATS, MadeCalls

from ppwork.diagnosis.findings import Diagnosis
from ppwork.diagnosis.recorded_calls import with_calls
from ppwork.diagnosis.runs import diagnose
from ppwork.records.calls import CallPart
from ppwork.records.failure import FailureRecord

ONE = CallPart(**FLOATS)


def from_logs(error_type: str) -> Diagnosis:
    cause = FailureRecord(
        rank=1, error_type=error_type, what="The ranks were in different calls.", where={},
        check_first="the logs", symptom=False, at_ns=0, traceback="",
    )  # fmt: skip
    return Diagnosis(Path("logs"), cause, unknown=("which rank is the wrong one",), headline=cause.what)


@pytest.fixture
def skipped(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.call(0, "all_reduce", 0, 3000, ONE, line=5, error="RuntimeError: Timed out")
    made.call(1, "barrier", 0, 3000, line=8, error="RuntimeError: Timed out")
    for rank in range(2):
        made.left(rank, 3001, "RuntimeError: Timed out")
    return tmp_path


def test_calls_say_what_the_places_in_the_logs_do_not(skipped):
    found = with_calls(from_logs("Timeout"), skipped)
    assert found.headline.startswith("Collective 1 of default_pg: rank 0 all_reduce")
    assert [wait.waits_for for wait in found.waits] == [(1,), (0,)]
    assert found.check_first.startswith("which of the two calls is meant")
    assert found.unknown == ("which rank is the wrong one",)


def test_a_turn_less_of_a_loop_is_told_by_how_often_each_rank_had_come_to_its_line(tmp_path):
    """The table had 42 and 41 rows of that line, and the sentence asked which of the two calls was meant."""
    made = MadeCalls(tmp_path, 2)
    for turn in range(2):
        for rank in range(2):
            sums = 2 if (turn, rank) != (1, 1) else 1
            for n in range(sums):
                made.call(rank, "all_reduce", 100 * turn + 10 * n, 100 * turn + 10 * n + 5, ONE, line=5)
            if turn == 0:
                made.call(rank, "barrier", 50, 55, line=8)
    made.call(1, "barrier", 120, 3000, line=8, error="RuntimeError: Timed out")
    for rank in range(2):
        made.left(rank, 3001, "RuntimeError: Timed out")
    asked = with_calls(from_logs("Timeout"), tmp_path).check_first
    lines = "all_reduce at prog.py:5 was called by rank 0 4 times and rank 1 3 times"
    assert lines in asked, asked
    assert "barrier at prog.py:8 was called by rank 0 once and rank 1 2 times: does a loop" in asked


def test_an_exception_of_a_ranks_own_says_more_than_its_calls(skipped):
    found = from_logs("ValueError")
    assert with_calls(found, skipped) == found


def test_a_folder_without_calls_changes_nothing(tmp_path):
    found = from_logs("Timeout")
    assert with_calls(found, tmp_path) == found
    assert with_calls(found, tmp_path / "job.log") == found


def test_a_rank_that_is_known_leaves_no_question(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.recv(0, 1, 0, 3000, line=5, error="RuntimeError: Timed out")
    made.left(0, 3001, "RuntimeError: Timed out")
    made.call(1, "barrier", -1, 0, line=3)
    found = with_calls(from_logs("Timeout"), tmp_path)
    assert (found.cause.rank, found.unknown) == (1, ())


def test_a_sum_that_let_a_rank_through_is_known_by_its_sizes(tmp_path):
    found = diagnose(log_dir("miscount", tmp_path))
    assert "either sizes differ" in found.text
    made = MadeCalls(tmp_path, 3)
    for rank in range(3):
        timed_out = "RuntimeError: Timed out" if rank else ""
        size = CallPart(dtype="float32", shape=(4 + rank,), size=4 + rank)
        made.call(rank, "all_reduce", 0, 3000 if rank else 1, size, line=12, error=timed_out)
    made.call(0, "barrier", 1, 3000, line=13, error="RuntimeError: Timed out")
    for rank in range(3):
        made.left(rank, 3001, "RuntimeError: Timed out")
    found = diagnose(tmp_path)
    assert found.headline.startswith("Collective 1 of default_pg: rank 0 all_reduce float32[4], rank 1")
    assert (found.cause.where, found.unknown, found.seen) == ({}, (), ())
    assert found.lines[0].startswith("/srv/me/miscount.py:12")


def test_where_the_ranks_stood_is_told_of_a_job_that_was_ended_from_outside(tmp_path):
    ended = "torch/distributed/elastic/agent/server/api.py:753] Received 2 death signal, shutting down"
    (tmp_path / "torchrun.log").write_text(ended)
    made = MadeCalls(tmp_path, 3)
    for rank in (0, 2):
        made.call(rank, "all_reduce", 0, None, ONE, line=3)
    made.call(1, "barrier", 0, None, line=5)
    found = diagnose(tmp_path)
    assert found.cause.error_type == "Stopped"
    assert found.headline.startswith("torchrun was ended from outside by SIGINT; no rank failed before.")
    assert "ranks 0 and 2 all_reduce" in found.headline
    assert [(wait.rank, wait.waits_for) for wait in found.waits] == [(0, (1,)), (1, (0, 2)), (2, (1,))]
    assert not found.unknown


def test_calls_are_found_also_where_the_console_was_given_first(skipped):
    (skipped / "torchrun.log").write_text("torch/distributed/elastic: exitcode\n")
    other = skipped.parent / "console.log"
    error = ("Traceback (most recent call last):", "RuntimeError: Timed out waiting 1ms for recv")
    other.write_text("\n".join(f"[default0]:[rank0]: {line}" for line in error))
    found = diagnose([other, skipped])
    assert "rank 0 all_reduce" in found.text
