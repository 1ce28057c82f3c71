"""The page on reliability: its faults are those of the catalogue, its options and its tests are there."""

from __future__ import annotations

import re

from checkout import ROOT
from typer.main import get_command

from ppwork.cli.main import app
from ppwork.faults.catalogue import FAULTS
from ppwork.plan import Plan

PAGE = (ROOT / "docs" / "reliability.md").read_text()


def test_the_table_of_faults_is_the_catalogue():
    rows = re.findall(r"^\| (F\d\d) \| ([^|]+) \|", PAGE, re.MULTILINE)
    assert rows == [(fault.id, fault.title) for fault in FAULTS]


def test_every_bound_of_the_plan_has_its_option():
    rows = re.findall(r"^\| `(\w+)` \| (?:`--([\w-]+)`|-) \|", PAGE, re.MULTILINE)
    options = {name for each in get_command(app).commands["run"].params for name in each.opts}
    assert {name for name, _ in rows} >= {"timeout_s", "stall_s", "freeze_s", "heartbeat_s"}
    for name, option in rows:
        assert hasattr(Plan(), name), name
        assert not option or f"--{option}" in options, option


def test_every_test_that_shows_a_promise_is_there():
    named = set(re.findall(r"`(test_\w+\.py)`", PAGE))
    assert named
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
