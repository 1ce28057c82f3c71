"""A question before a run, and the reply to the option that was chosen."""

from __future__ import annotations

import pytest

from ppwork.errors import PlanError
from ppwork.lab.lesson import predict

OPTIONS = {
    "the longer stage": (30.0, "so it is once both run at a time"),
    "both, added up": (60.0, "so it is in turns"),
}
WORDS = {"it waits": ("waits", "nobody comes"), "an error": ("error", "none is checked")}


def test_question_shows_its_options_and_what_is_still_to_do():
    assert repr(predict("The period?", OPTIONS)).splitlines() == [
        "The period?",
        "  a  the longer stage",
        "  b  both, added up",
        "write your letter into answer= before you run on",
    ]
    assert repr(predict("The period?", OPTIONS, "b")).endswith("you say b")


@pytest.mark.parametrize(
    ("answer", "measured", "first"),
    [
        ("b", 66.0, ["You said b: right.", "b  both, added up: so it is in turns"]),
        ("a", 66.0, ["You said a: the run says b.", "a  the longer stage: so it is once both run at a time"]),
        ("a", 31.0, ["You said a: right.", "a  the longer stage: so it is once both run at a time"]),
    ],
)
def test_the_reply_is_to_the_option_that_was_chosen_and_the_nearest_outcome_is_right(answer, measured, first):
    comparison = predict("?", OPTIONS, answer).compare(measured)
    assert repr(comparison).splitlines()[:2] == first
    page = comparison._repr_html_()
    shown, folded = page.split("<details>")
    assert first[1] in shown
    assert first[1] not in folded


def test_who_has_not_chosen_finds_every_reply_folded():
    comparison = predict("?", OPTIONS).compare(31.0)
    page = comparison._repr_html_()
    assert page.startswith("<details>")
    assert all(reply in page for _, reply in OPTIONS.values())
    assert repr(comparison).splitlines()[0] == "The run says a."


def test_an_outcome_in_words_is_the_option_of_these_words():
    question = predict("?", WORDS, "a")
    assert question.compare("error").right == "b"
    for outcome in ("ends", 1.0):
        with pytest.raises(PlanError, match="No option of the question stands for"):
            question.compare(outcome)


def test_question_that_cannot_be_answered_is_refused():
    with pytest.raises(PlanError, match="1 options"):
        predict("?", {"only": (1.0, "yes")})
    with pytest.raises(PlanError, match="stand for one outcome"):
        predict("?", {"x": (1.0, "yes"), "y": (1.0, "no")})
    with pytest.raises(PlanError, match="'y' has no reply"):
        predict("?", {"x": (1.0, "yes"), "y": (2.0, "")})
    for answer in ("c", "ab", "A"):
        with pytest.raises(PlanError, match="The answer was"):
            predict("?", OPTIONS, answer)
