"""The page on the protocol has the tables of the code, and every rule that the code names."""

from __future__ import annotations

import dataclasses
import re

import pytest
from checkout import ROOT

from ppwork.protocol.header import HEADER, HEADER_BYTES, Limits
from ppwork.protocol.states import TRANSITIONS
from ppwork.protocol.wire import ALIGN, SCHEMA_SLOTS

PAGE = (ROOT / "docs" / "protocol.md").read_text()
RULE = re.compile(r"\brules? (R\d+)(?: and (R\d+))?", re.IGNORECASE)


def test_the_states_are_those_of_the_table():
    rows = [
        f"| `{state}` | {', '.join(f'{event} → `{after}`' for event, after in moves.items()) or '-'} |"
        for state, moves in TRANSITIONS.items()
    ]
    assert "\n".join(["| state | event → next state |", "| --- | --- |", *rows]) in PAGE


def test_the_header_and_its_limits_are_those_of_the_code():
    fields = re.findall(r"^\| `(\w+)` \| (\d+) \| \S", PAGE, flags=re.MULTILINE)
    sizes = [int(size) for _, size in fields]
    offsets = re.findall(r"\d*[a-zA-Z]", HEADER.format.lstrip("<"))
    widths = {"4s": 4, "H": 2, "B": 1, "I": 4, "q": 8, "Q": 8}
    assert sizes == [widths[code] for code in offsets]
    assert sum(sizes) == HEADER_BYTES
    assert f"a header of\n{HEADER_BYTES} bytes" in PAGE
    assert f"remember the last {SCHEMA_SLOTS}." in PAGE
    assert f"a multiple of {ALIGN} bytes" in PAGE
    for limit in dataclasses.fields(Limits):
        assert f"| `{limit.name}` | {limit.default:,} |" in PAGE


@pytest.mark.parametrize("folder", ["ppwork", "docs"])
def test_every_rule_that_is_named_is_on_the_page(folder):
    named = {
        rule
        for path in (ROOT / folder).rglob("*.[pm][yd]")
        for names in RULE.findall(path.read_text())
        for rule in names
        if rule
    }
    defined = re.findall(r"^### (R\d+)$", PAGE, flags=re.MULTILINE)
    assert defined == [f"R{number}" for number in range(1, 13)]
    assert named <= set(defined)
