"""The page on reliability: its faults are those of the catalogue, and its tests are there."""

from __future__ import annotations

import re

from checkout import ROOT

from ppwork.faults.catalogue import FAULTS

PAGE = (ROOT / "docs" / "reliability.md").read_text()


def test_the_table_of_faults_is_the_catalogue():
    rows = re.findall(r"^\| (F\d\d) \| ([^|]+) \|", PAGE, re.MULTILINE)
    assert rows == [(fault.id, fault.title) for fault in FAULTS]


def test_every_test_that_shows_a_promise_is_there():
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert named
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
