"""What is said of jobs whose cause is known: never wrong, and right as often as the page says."""

from __future__ import annotations

from collections import Counter

import pytest
from known_causes import MISHAPS, scores

LEAST = {
    "mishaps": 0.9,
    "reports": 0.9,
    "set_aside": 0.9,
    "held_out": 0.9,
    "blind": 0.9,
    "unseen": 0.9,
    "fresh": 0.9,
    "anew": 0.9,
    "third": 0.9,
    "fourth": 0.9,
    "posted": 0.9,
}
"""Shares of right answers; the rest is vague."""


@pytest.mark.parametrize("group", LEAST)
def test_no_answer_is_wrong_and_nearly_all_are_right(group):
    grades: Counter[str] = Counter()
    views: Counter[str] = Counter()
    for _, name, view, grade, answer in scores(group):
        assert grade in ("right", "vague"), f"{grade}: {name}, {view}:\n{answer}"
        grades[grade] += 1
        views[view] += 1
    assert grades["right"] >= LEAST[group] * grades.total()
    if group == "mishaps":  # each of them from all kinds of log
        assert set(views) == {"console", "folder", "both", "untagged"}
        assert min(views.values()) == max(views.values()) >= len(MISHAPS)
