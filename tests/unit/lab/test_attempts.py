"""What an exercise can see of a program of ranks; the calls are made up (made_calls.py), nothing runs."""

from __future__ import annotations

import pytest
from made_calls import MadeCalls

from ppwork.errors import PlanError, RunFailed
from ppwork.lab.exercises.attempts import Attempt, ends_well, program
from ppwork.lab.exercises.check import check
from ppwork.launcher.script import ScriptRun
from ppwork.process import PAST_LIMIT
from ppwork.records.calls import RECV, SEND, CallPart


def finished(folder, nproc=2, code=0, failure=None) -> ScriptRun:
    return ScriptRun(folder, code, failure, nproc=nproc)


@pytest.fixture
def attempt(tmp_path):
    """Rank 0 lends three buffers, two at a time, and forgets the last; rank 1 receives all of them."""
    made = MadeCalls(tmp_path, 2)
    first = made.send(0, 1, 0, 1, name="isend", lent=True)
    second = made.send(0, 1, 2, 3, name="isend", lent=True)
    made.wait(0, first, 4, 5)
    made.wait(0, second, 6, 7)
    made.send(0, 1, 8, 9, name="isend", lent=True)
    for start in (0, 2, 8):
        made.recv(1, 0, start, start + 1)
    return Attempt(finished(tmp_path))


def test_an_attempt_shows_order_bytes_loans_and_forgotten_handles(attempt):
    assert [call.name for call in attempt.calls(0)] == ["isend", "isend", "wait", "wait", "isend"]
    assert len(attempt.calls(0, "isend")) == 3
    assert attempt.calls(2) == []
    assert attempt.sent_bytes(0) == attempt.received_bytes(1) == 48
    assert attempt.lent_at_once(0) == 2
    assert [call.start_ns for call in attempt.forgotten(0)] == [8_000_000]


def test_buffers_that_change_hands_at_one_moment_are_not_lent_at_once(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for start in (0, 2):
        made.wait(0, made.send(0, 1, start, start + 1, name="isend", lent=True), start + 1, start + 2)
    assert Attempt(finished(tmp_path)).lent_at_once(0) == 1


def test_a_buffer_that_is_given_away_twice_is_seen_by_its_address_whenever_the_bytes_moved(tmp_path):
    made = MadeCalls(tmp_path, 2)

    def given(name, start, at, *, kind=RECV, lent=False):
        part = CallPart(kind, 1, dtype="float32", shape=(4,), size=16, at=at)
        return made.call(0, name, start, start + 1, part, lent=lent, line=start)

    torn = given("irecv", 0, 1000, lent=True)
    given("send", 2, 1008, kind=SEND)  # its second half is the first half of what is received into
    given("send", 4, 1016, kind=SEND)
    made.wait(0, torn, 6, 7)
    given("send", 8, 1000, kind=SEND)
    read = given("isend", 10, 2000, kind=SEND, lent=True)
    given("send", 12, 2000, kind=SEND)  # two that read do no harm
    made.wait(0, read, 14, 15)
    given("irecv", 16, 3000, lent=True)
    given("recv", 18, 3000)  # nobody waits for the first: that is another mistake
    given("irecv", 20, 0, lent=True)
    pairs = Attempt(finished(tmp_path)).shared(0)
    assert [(first.line, second.line) for first, second in pairs] == [("prog.py:0", "prog.py:2")]


def test_the_first_hint_counts_and_none_is_right(tmp_path):
    hints = ["the handle", "the order"]
    assert program(2)(lambda _: iter(hints))(finished(tmp_path)) == "the handle"
    assert program(2)(lambda _: iter(()))(finished(tmp_path)) == ""


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ({"nproc": 3}, "It ran on 3 ranks; this exercise asks for 2."),
        (
            {"code": 1, "failure": RunFailed("long", headline="Rank 1 raised.", check_first="its line")},
            "Rank 1 raised. Check first: its line.",
        ),
        (
            {"code": PAST_LIMIT, "failure": RunFailed("It passed its limit.\n  and more")},
            "It did not end. It passed its limit.",
        ),
    ],
)
def test_a_program_that_did_not_end_well_is_answered_by_its_diagnosis(tmp_path, run, said):
    never = program(2)(lambda _: pytest.fail("an attempt that failed has no facts to look at"))
    assert never(finished(tmp_path, **run)) == said


@pytest.mark.parametrize(
    ("code", "said"), [(1, "It does not end well. Look."), (PAST_LIMIT, "It did not end. Look."), (0, "")]
)
def test_advice_on_an_ending_says_whether_there_was_one(tmp_path, code, said):
    failure = RunFailed("long") if code else None
    assert ends_well("Look.")(finished(tmp_path, code=code, failure=failure)) == said


def test_a_function_is_no_answer_to_an_exercise_on_ranks(monkeypatch):
    monkeypatch.setitem(check.__globals__, "ON_RANKS", {"77.1": lambda run: ""})
    with pytest.raises(PlanError, match="not a finished program"):
        check("77.1", lambda: None)
