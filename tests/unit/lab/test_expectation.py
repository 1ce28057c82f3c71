"""A number of a lesson's prose is held to what the page says."""

from __future__ import annotations

import math

import pytest

import ppwork as pp
from ppwork.lab.expectation import Unexpected


def test_a_number_within_its_limits_passes_in_silence(capsys):
    pp.expect("05.period", 31.0, at_least=30, at_most=31.0)
    pp.expect("01.value", 7, equal=7)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("value", "limits", "said"),
    [
        (46.5, {"at_most": 40.0}, "x was 46.5, and this page says at most 40."),
        (1, {"at_least": 2, "at_most": 3}, "x was 1, and this page says at least 2."),
        (
            math.nan,
            {"at_least": 2, "at_most": 3},
            "x was nan, and this page says at least 2 and at most 3.",
        ),
        ("a", {"equal": "b"}, "x was 'a', and this page says 'b'."),
    ],
)
def test_another_one_is_named_with_its_limit(value, limits, said):
    with pytest.raises(Unexpected) as error:
        pp.expect("x", value, **limits)
    assert error.value.what == said


def test_an_expectation_without_a_limit_is_none():
    with pytest.raises(TypeError, match="needs at_least="):
        pp.expect("x", 1)
