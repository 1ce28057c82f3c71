"""Which builds are new enough: each usual mistake gets its own hint."""

from __future__ import annotations

import pytest

from ppwork.lab.exercises.check import check


@pytest.mark.parametrize(
    ("builds", "hint"),
    [
        (["2.9.1", "2.14.0+cpu"], "9 is less than 14"),
        (["2.14.0rc2", "2.14.0+cpu"], "comes before its release"),
        (["2.14.0+cpu"], "after every 2.14"),
        ([], "how it was built"),
        (["2.14"], "a list of builds"),
        ("2.14.0+cpu", "a list of builds"),
    ],
)
def test_hint_answers_the_mistake(builds, hint):
    verdict = check("16.2", lambda: builds)
    assert not verdict.right
    assert hint in verdict.hint
