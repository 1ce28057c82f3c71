"""The judge of the random kills, on made-up outcomes: no run is started here."""

from __future__ import annotations

import importlib
import json

import pytest
from checkout import BENCHMARKS


@pytest.fixture(scope="module")
def kills():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(BENCHMARKS)
        yield importlib.import_module("random_kills")


def outcome_of(kills, victim="rank 1", sent="SIGKILL", **changes):
    fields = {"phase": "run", "bound_s": 2.0, "ranks_s": 0.5, "gone_s": 1.0, "over_s": 1.5}
    return kills.Outcome(kills.Case(0, 2, victim, sent, 0.5), **{**fields, **changes})


def judged(kills, outcome, said="", where=None, chunks=None):
    report = {"said": said, "where": where or {}, "chunks": chunks}
    kills.judge(outcome, b"noise\n" + json.dumps(report).encode(), 0)
    return outcome.wrong


def test_series_follows_from_its_seed_and_meets_every_victim_with_everything(kills):
    cases = [kills.case_of(7, index) for index in range(400)]
    assert cases == [kills.case_of(7, index) for index in range(400)]
    assert cases != [kills.case_of(8, index) for index in range(400)]
    met = {(kills.kind_of(case), case.sent) for case in cases}
    processes = ("rank 0", "leader", "follower", "torchrun", "launcher")
    sent = {(kind, sent) for kind in processes for sent in (*kills.STRIKES, *kills.SIGNALS)}
    assert met == {*sent, *kills.LOSSES, ("all", "pause")}
    assert all(case.rank is None or case.rank <= case.mesh_size for case in cases)
    assert all((case.pause_s > 0) == (case.victim == "all") for case in cases)


def test_rank_that_is_named_in_time_is_right(kills):
    outcome = outcome_of(kills)
    assert judged(kills, outcome, "Rank 1 failed first: RankDied", {"rank": 1}) == []
    assert outcome.named is True


@pytest.mark.parametrize(
    ("changes", "said", "where", "wrong"),
    [
        ({}, "Rank 0 failed first", {"rank": 0}, "another one was named"),
        ({"ranks_s": 2.1}, "Rank 1 failed first", {"rank": 1}, "ranks were there for 2.1 s"),
        ({"gone_s": 5.1, "over_s": 5.2}, "Rank 1", {"rank": 1}, "torchrun for 5.1 s"),
        ({"left": ["rank 2"]}, "Rank 1 failed first", {"rank": 1}, "left: ['rank 2']"),
        ({"over_s": 9.0}, "Rank 1 failed first", {"rank": 1}, "took 8.0 s to report"),
        ({"existed": False}, "Rank 1 failed first", {"rank": 1}, "nothing had been done"),
        ({"victim": "torchrun"}, "Rank 1 failed first", {"rank": 1}, "another one was named"),
        ({"victim": "launcher", "sent": "SIGSTOP"}, "Rank 1 failed first", {"rank": 1}, "nothing had been"),
        ({}, "", {}, "ended well with None chunks"),
    ],
    ids=["name", "ranks late", "torchrun late", "left", "report", "nobody", "torchrun", "launcher", "chunks"],
)
def test_what_is_not_as_it_should_be_is_said(kills, changes, said, where, wrong):
    outcome = outcome_of(kills, **changes)
    assert wrong in " ".join(judged(kills, outcome, said, where))


def test_run_ends_well_only_if_nobody_was_struck_in_its_middle(kills):
    assert judged(kills, outcome_of(kills, existed=False), chunks=kills.CHUNKS) == []
    assert judged(kills, outcome_of(kills, phase="end"), chunks=kills.CHUNKS) == []
    assert "struck in mid-run" in judged(kills, outcome_of(kills), chunks=kills.CHUNKS)[0]
    stopped = outcome_of(kills, victim="launcher", sent="SIGSTOP")
    assert judged(kills, stopped, chunks=kills.CHUNKS) == []


def test_launcher_that_says_nothing_is_wrong_unless_it_was_killed(kills):
    silent, killed = outcome_of(kills), outcome_of(kills, victim="launcher")
    kills.judge(silent, b"Traceback: boom", 1)
    kills.judge(killed, b"", -9)
    assert "ended with code 1: Traceback: boom" in silent.wrong[0]
    assert killed.wrong == []


@pytest.mark.parametrize(
    ("victim", "sent", "said"),
    [
        ("all", "pause", "The job was paused for 6.9 s"),
        ("run folder", "moved", "The run folder x was moved or removed"),
        ("scratch", "removed", "All ranks had ended, and torchrun did not leave: was its store removed?"),
    ],
)
def test_what_is_no_process_must_be_told_or_the_run_end_well(kills, victim, sent, said):
    assert judged(kills, outcome_of(kills, victim, sent), said) == []
    assert judged(kills, outcome_of(kills, victim, sent), chunks=kills.CHUNKS) == []
    assert "another one was named" in judged(kills, outcome_of(kills, victim, sent), said, {"rank": 1})[0]
    assert "another one was named" in judged(kills, outcome_of(kills, victim, sent), "Rank 1 failed")[0]


def test_launcher_that_was_ended_politely_says_nothing_but_how(kills):
    for printed, wrong in ((b"", 0), (b"Traceback (most recent call last):\nKeyboardInterrupt", 0),
                           (b"Traceback (most recent call last):\nOSError: x", 1)):  # fmt: skip
        outcome = outcome_of(kills, victim="launcher", sent="SIGINT")
        kills.judge(outcome, printed, 130)
        assert len(outcome.wrong) == wrong


def test_table_has_a_row_for_each_kind_of_victim_and_signal(kills):
    named, well = outcome_of(kills, ranks_s=0.25), outcome_of(kills, phase="end")
    judged(kills, named, "Rank 1 failed first", {"rank": 1})
    judged(kills, well, chunks=kills.CHUNKS)
    assert list(kills.rows_of([named, well])) == [("leader", "SIGKILL", 2, 1, 0, 0, "1 of 1", 0.25, 0.25)]
