"""Who was doing what, and who noticed when, from the files of a run that failed."""

from __future__ import annotations

import pytest
from failed_runs import BREAKS_MS, KILLED, failed_run
from made_runs import at

from ppwork.diagnosis.findings import Diagnosis
from ppwork.diagnosis.story import failure_story
from ppwork.errors import PlanError
from ppwork.records.failure import record_of
from ppwork.records.pulse import Pulse, PulseState
from ppwork.records.run import Run


def by_rank(story):
    return {rank.rank: rank for rank in story.ranks}


def test_moments_are_counted_from_the_injection(tmp_path):
    story = failure_story(failed_run(tmp_path, **KILLED))
    assert story.fault == "F13"
    assert story.noticed == pytest.approx({1: 0.008, 0: 0.0185})
    assert list(story.noticed) == [1, 0]
    assert story.peers_noticed == story.noticed
    assert story.struck.rank == 2
    ranks = by_rank(story)
    assert [ranks[r].ended for r in range(3)] == ["exited with code 3"] * 2 + ["was killed by SIGKILL"]
    assert [ranks[r].error_type for r in range(3)] == ["TerminalNotice", "PeerLostError", ""]
    assert [ranks[r].role for r in range(3)] == ["stage0", "leader", "follower"]
    assert ranks[1].work[-1] == pytest.approx((-0.010, 0.055))


def test_each_rank_is_found_in_what_it_was_doing(tmp_path):
    """Work comes before transfers and waits; of the dead one only what it had finished is known."""
    ranks = by_rank(failure_story(failed_run(tmp_path, **KILLED)))
    assert ranks[1].doing == "generate, chunk 3"
    assert ranks[0].doing == "receive on up_pg"
    assert ranks[2].doing == "after generate, chunk 2"


@pytest.mark.parametrize(
    ("since_ms", "doing"),
    [
        (BREAKS_MS - 10, "generate, chunk 3"),
        (200, "after generate, chunk 2"),
        (BREAKS_MS + 10, "after generate, chunk 2"),
    ],
    ids=["within the step", "before the last span ended", "after it broke"],
)
def test_a_pulse_says_what_a_rank_died_in_if_it_beat_since(tmp_path, since_ms, doing):
    run = failed_run(tmp_path, **KILLED)
    Pulse(tmp_path, 2).beat(PulseState.BUSY, "generate", {"chunk_index": 3}, at(since_ms))
    assert by_rank(failure_story(run))[2].doing == doing


def test_a_clock_that_is_ahead_changes_nothing(tmp_path):
    (tmp_path / "same").mkdir()
    (tmp_path / "ahead").mkdir()
    same = failure_story(failed_run(tmp_path / "same", **KILLED))
    ahead = failure_story(failed_run(tmp_path / "ahead", **KILLED, offset_ms=70))
    assert ahead.noticed == pytest.approx(same.noticed)
    assert by_rank(ahead)[1].work[-1] == pytest.approx(by_rank(same)[1].work[-1])


def test_without_an_injection_it_begins_with_the_record_of_the_rank_that_is_named(tmp_path):
    notices = {0: (5.0, "TerminalNotice"), 1: (1.0, "StageError")}
    story = failure_story(failed_run(tmp_path, notices=notices, codes={0: 3, 1: 1, 2: -15}, named=1))
    assert story.fault == ""
    assert story.struck.rank == 1
    assert story.noticed == pytest.approx({1: 0.0, 0: 0.004})
    assert list(story.peers_noticed) == [0]


def test_without_a_record_it_begins_with_the_last_that_is_known_of_the_rank(tmp_path):
    """The follower had received chunk 3, which took it 15 ms; it died 10 ms later."""
    story = failure_story(failed_run(tmp_path, **{**KILLED, "injected_on": None}))
    assert story.struck.rank == 2
    assert story.noticed[1] == pytest.approx(0.008 + 0.010)


def test_a_rank_that_left_nothing_was_at_its_start(tmp_path):
    run = failed_run(tmp_path, **{**KILLED, "injected_on": None})
    (tmp_path / "spans-rank2.jsonl").unlink()
    story = failure_story(run)
    assert story.struck.doing == "at its start"
    assert story.noticed[1] == 0.0


def test_signals_without_a_name_and_a_missing_report_are_no_trouble(tmp_path):
    run = failed_run(tmp_path, **{**KILLED, "codes": {2: -77}})
    assert by_rank(failure_story(run))[2].ended == "was killed by signal 77"
    (tmp_path / "torchrun.log").unlink()
    assert by_rank(failure_story(run))[2].ended == ""


def test_of_a_very_long_message_the_beginning_is_told_and_how_much_there_is(tmp_path):
    """A megabyte of it came on one line of the console."""
    record = record_of(ValueError("x" * 1_000_000), 1, {})
    told = Diagnosis(tmp_path, record)
    assert told.sentence.startswith("Rank 1 failed first: ValueError: xxx")
    assert told.sentence.endswith(" ... (998,033 characters more in the log of that rank)")
    assert len(told.text) < 3000


def test_a_run_without_a_failed_rank_has_no_story(tmp_path):
    with pytest.raises(PlanError, match="No rank"):
        failure_story(Run(tmp_path, 0))
    with pytest.raises(PlanError, match="No rank"):
        failure_story(failed_run(tmp_path, **KILLED, named=None))
