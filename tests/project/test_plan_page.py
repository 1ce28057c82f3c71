"""The reference of the plan: every field is on it, with its option and its default."""

from __future__ import annotations

import re

import msgspec
import pytest
from checkout import ROOT
from typer.main import get_command

from ppwork.cli.main import app
from ppwork.plan import Plan

PAGE = (ROOT / "docs" / "plan.md").read_text()
ROW = re.compile(r"^\| (\*?`\w+`\*?(?:, \*?`\w+`\*?)*) \| ([^|]+) \| ([^|]+) \|", re.MULTILINE)
WORDS = {"False": "off", "None": "none", "()": "`()`", str(1 << 30): "1 GiB"}
ROWS = [(re.findall(r"`(\w+)`", names), option, default) for names, option, default in ROW.findall(PAGE)]
FIELDS = {field.name: field.default for field in msgspec.structs.fields(Plan)}
IN_WORDS = {"stall_s", "heartbeat_s", "stage0", "stage1", "options"}
"""Their default is told by what it means."""
OF_JOIN = {"plan", "run_dir", "ranks", "mesh"}
TAUGHT = {"schedule", "fault"}
"""Told in a sentence below the tables."""


def test_every_field_has_a_row():
    listed = [name for names, *_ in ROWS for name in names]
    assert len(listed) == len(set(listed))
    assert set(listed) - OF_JOIN == set(FIELDS) - TAUGHT
    assert all(f"`{name}`" in PAGE for name in TAUGHT)


@pytest.mark.parametrize(("names", "option", "default"), ROWS, ids=lambda value: str(value)[:30])
def test_a_row_has_the_option_and_the_default(names, option, default):
    if names[0] in OF_JOIN:
        return
    options = {name for each in get_command(app).commands["run"].params for name in each.opts}
    assert {word.strip("`") for word in option.split(", ") if word != "-"} <= options
    for name in set(names) - IN_WORDS:
        value = FIELDS[name]
        if isinstance(value, str):
            assert default == f'`"{value}"`'
        elif isinstance(value, float):
            assert float(default) == value
        else:
            assert default == WORDS.get(str(value), str(value))
