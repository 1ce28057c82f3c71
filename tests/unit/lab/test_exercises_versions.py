"""Which builds are new enough: each usual mistake gets its own hint."""

from __future__ import annotations

import pytest

from ppwork.lab.exercises.check import check


@pytest.mark.parametrize(
    ("builds", "hint"),
    [
        (["2.9.1", "2.14.0+cpu"], "9 is less than 14"),
        (["2.13.1+cu130", "2.14.0+cpu"], "2.13.1 is older"),
        (["2.14.0a0+git1b2c", "2.14.0+cpu"], "comes before its release"),
        ([], "how it was built"),
        (["2.14"], "a list of builds"),
        ("2.14.0+cpu", "a list of builds"),
    ],
)
def test_hint_answers_the_mistake(builds, hint):
    verdict = check("16.2", lambda: builds)
    assert not verdict.right
    assert hint in verdict.hint
