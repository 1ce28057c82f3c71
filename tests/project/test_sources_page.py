"""The page on the sources counts its own rows right, and what its rows name is there."""

from __future__ import annotations

import json
import re
from collections import Counter

import pytest
from checkout import ROOT

from ppwork.claims.catalogue import CLAIMS
from ppwork.faults.catalogue import FAULTS

PAGE = (ROOT / "docs" / "sources.md").read_text()
STATES = ("works", "partly", "needs a GPU", "out of scope", "missing")
BEFORE = 5
"""Columns of the audit: works, partly, only text, missing, n/a."""
MOST_MISSING = 15
ROW = re.compile(r"^\| (\w+) \| (.+?) \| (.+?) \| ([^|]+?) \|$", re.MULTILINE)
NAMED = re.compile(r"\b(?:[CDAGTR]\d{2}|F\d{2})\b")
STAGES = re.compile(r"stages? ((?:`[\w-]+`(?:, | and )?)+)")


def tables() -> dict[str, list[tuple[str, str, str, str]]]:
    """Rows of each source: its number in the audit, the statement, what shows it, its state."""
    sections = re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]
    rows = {text.partition("\n")[0]: ROW.findall(text) for text in sections}
    return {name: found for name, found in rows.items() if name != "Counts"}


def kinds(rows: list[tuple[str, str, str, str]]) -> list[int]:
    counted = Counter(state.partition(":")[0] for *_, state in rows)
    assert set(counted) <= set(STATES), counted
    return [counted[state] for state in STATES]


def counted_rows() -> dict[str, list[int]]:
    """The table of counts: by source, all numbers of its row."""
    counts = PAGE.partition("## Counts")[2].partition("\n## ")[0]
    return {
        name: [int(number) for cell in cells for number in re.findall(r"\d+", cell)]
        for name, *cells in re.findall(
            r"^\| ([^|]+?) \| (\d+) \| ([\d, ]+) \| ([\d, ]+) \|$", counts, re.MULTILINE
        )
    }


def test_the_counts_are_those_of_the_rows():
    said, found = counted_rows(), tables()
    assert set(said) == {*found, "all"}
    for name, rows in found.items():
        assert said[name][0] == len(rows) == sum(said[name][1 : 1 + BEFORE])
        assert said[name][1 + BEFORE :] == kinds(rows), name
    sums = [sum(column) for column in zip(*(said[name] for name in found), strict=True)]
    assert said["all"] == sums
    assert sums[0] == 249
    assert sums[-1] <= MOST_MISSING


def test_no_statement_stands_twice_and_none_is_settled_without_a_reason():
    for name, rows in tables().items():
        assert len({number for number, *_ in rows}) == len(rows), name
        for number, _, shown, state in rows:
            if state.startswith("works"):
                assert shown != "-", (name, number)
            if state.startswith("out of scope"):
                assert state.partition(": ")[2], (name, number)


@pytest.mark.parametrize("source", tables())
def test_every_claim_and_fault_that_a_row_names_is_there(source):
    known = {*CLAIMS, *(fault.id for fault in FAULTS)}
    for number, _, shown, _ in tables()[source]:
        for first, last in re.findall(r"([A-Z]\d{2}) to ([A-Z]\d{2})", shown):
            assert all(f"{first[0]}{n:02d}" in known for n in range(int(first[1:]), int(last[1:]) + 1)), (
                number
            )
        assert set(NAMED.findall(shown)) <= known, number


def test_every_lesson_that_a_row_names_is_there():
    lessons = {
        json.loads(path.read_text())["metadata"]["ppwork"]["lesson"]
        for path in (ROOT / "notebooks").glob("[0-9]*.ipynb")
    }
    named = {
        int(lesson)
        for rows in tables().values()
        for *_, shown, _ in rows
        for numbers in re.findall(r"lessons? ((?:\d{2}(?:, )?)+)", shown)
        for lesson in re.findall(r"\d{2}", numbers)
    }
    assert named
    assert named <= lessons


def test_every_stage_of_the_kit_that_a_row_names_is_there():
    kit = (ROOT / "docs" / "gpu.md").read_text()
    named = {name for found in STAGES.findall(PAGE) for name in re.findall(r"`([\w-]+)`", found)}
    assert named
    assert [name for name in named if f"| {name} | " not in kit] == []
