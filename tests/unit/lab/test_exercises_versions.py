"""The function of the lesson on versions: each usual mistake gets its own hint."""

from __future__ import annotations

import pytest

from ppwork.lab.exercises.check import check


def as_text(version, wanted):
    return version >= f"{wanted[0]}.{wanted[1]}"


def as_decimal(version, wanted):
    number = ".".join(version.split(".")[:2])
    return float(number) >= float(f"{wanted[0]}.{wanted[1]}")


def whole_parts(version, wanted):
    return tuple(int(part) for part in version.split(".")) >= wanted


def second_only(version, wanted):
    return int(version.split(".")[1]) >= wanted[1]


@pytest.mark.parametrize(
    ("answer", "hint"),
    [
        (as_text, "compare numbers"),
        (as_decimal, "2.9"),
        (whole_parts, "raised ValueError"),
        (second_only, "A greater first number decides"),
    ],
)
def test_hint_answers_the_mistake(answer, hint):
    verdict = check("16.2", answer)
    assert not verdict.right
    assert hint in verdict.hint
