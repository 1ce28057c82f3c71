"""A question before a run, and the reply to the option that was chosen."""

from __future__ import annotations

import pytest
from question_problems import problem_of

from ppwork.errors import PlanError
from ppwork.lab import question as module
from ppwork.lab.lesson import predict
from ppwork.lab.question import questions_of

FILE = """
[period]
question = "The period with {depth} chunks?"
options = [
  {text = "the longer stage", outcome = 30, reply = "so it is once both run at a time"},
  {text = "both, added up", outcome = "{both_ms}", reply = "so it is in turns: {both_ms:g} ms"},
]

[sum]
question = "What happens?"
judge = "sums"
options = [
  {text = "it waits", outcome = "waits", reply = "nobody comes"},
  {text = "an error", outcome = "error", reply = "none is checked"},
]
"""
LONGER, BOTH = (
    "a  the longer stage: so it is once both run at a time",
    "b  both, added up: so it is in turns: 60 ms",
)


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    (tmp_path / "99.toml").write_text(FILE)
    monkeypatch.setattr(module, "FOLDER", tmp_path)


def period(answer=""):
    return predict("99.period", answer, depth=3, both_ms=60.0)


def test_question_shows_its_options_without_replies_and_what_is_still_to_do():
    assert repr(period()).splitlines() == [
        "The period with 3 chunks?",
        "  a  the longer stage",
        "  b  both, added up",
        "write your letter into answer= before you run on",
    ]
    assert repr(period("b")).endswith("you say b")


@pytest.mark.parametrize(
    ("answer", "measured", "first"),
    [
        ("b", 66.0, ["You said b: right.", BOTH]),
        ("a", 66.0, ["You said a: the run says b.", LONGER]),
        ("a", 31.0, ["You said a: right.", LONGER]),
    ],
)
def test_the_reply_is_to_the_option_that_was_chosen_and_the_nearest_outcome_is_right(answer, measured, first):
    comparison = period(answer).compare(measured)
    assert repr(comparison).splitlines()[:2] == first
    shown, folded = comparison._repr_html_().split("<details>")
    assert first[1] in shown
    assert first[1] not in folded


def test_who_has_not_chosen_finds_every_reply_folded():
    comparison = period().compare(31.0)
    page = comparison._repr_html_()
    assert page.startswith("<details>")
    assert LONGER in page
    assert BOTH in page
    assert repr(comparison).splitlines()[0] == "The run says a."


def test_sums_done_by_hand_are_not_called_a_run():
    assert repr(predict("99.sum").compare("error")).splitlines()[0] == "The sums say b."
    assert repr(predict("99.sum", "a").compare("error")).splitlines()[0] == "You said a: the sums say b."


def test_an_outcome_in_words_is_the_option_of_these_words():
    asked = predict("99.sum", "a")
    assert asked.compare("error").right == "b"
    for outcome in ("ends", 1.0):
        with pytest.raises(PlanError, match="No option of the question stands for"):
            asked.compare(outcome)


@pytest.mark.parametrize(
    ("name", "values", "said"),
    [
        ("98.period", {}, "There are no questions of a lesson '98'"),
        ("99.nothing", {}, "There is no question '99.nothing'"),
        ("99.period", {"depth": 3}, "speaks of 'both_ms', which was not given"),
        ("99.sum", {"answer": "c"}, "The answer was 'c'"),
        ("99.sum", {"answer": "ab"}, "The answer was 'ab'"),
        ("99.sum", {"answer": "A"}, "The answer was 'A'"),
    ],
)
def test_question_that_cannot_be_asked_is_refused(name, values, said):
    with pytest.raises(PlanError, match=said):
        predict(name, **values)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('reply = "nobody comes"', 'reply = " "', "'it waits' has no reply"),
        ('outcome = "error"', 'outcome = "waits"', "stand for one outcome"),
        ('  {text = "an error", outcome = "error", reply = "none is checked"},\n', "", "1 options"),
    ],
)
def test_a_question_that_is_not_whole_is_found(tmp_path, old, new, said):
    assert not any(problem_of(asked) for asked in questions_of("99").values())
    assert old in FILE
    (tmp_path / "99.toml").write_text(FILE.replace(old, new))
    assert said in problem_of(questions_of("99")["sum"])
