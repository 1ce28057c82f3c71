"""The page of the claims, and their table in a notebook."""

from __future__ import annotations

import msgspec
import pytest
from claim_reports import report
from typer.testing import CliRunner

from ppwork.claims.claim import Verdict
from ppwork.claims.report import Machine, Reports, as_html, markdown
from ppwork.cli.main import app
from ppwork.errors import PlanError


def machine(**changes):
    known = {
        "backend": "gloo", "torch": "2.13.0", "python": "3.11", "system": "Linux", "cpus": 2, "gpus": 0,
        "memory_gib": 23.5, "ppwork": "0.1.0", "date": "2026-11-21",
    }  # fmt: skip
    return Machine(**{**known, **changes})


@pytest.fixture
def here():
    return Reports(
        machine=machine(),
        seconds=60.0,
        claims=[report("C04", Verdict.DOES_NOT_HOLD, "a|b\nc"), report("C01")],
    )


def rows(page):
    return {
        line.split(" | ")[0].strip("| "): line
        for line in page.splitlines()
        if line.startswith("| ") and not line.startswith("| id")
    }


def test_each_row_says_the_claim_its_source_what_was_seen_and_what_to_do(here):
    page = markdown([here])
    found = rows(page)
    assert set(found) == {"C04", "C01"}
    assert "**does not hold here**: a\\|b c" in found["C04"]
    for one in here.claims:
        assert all(text in found[one.id] for text in (one.statement, one.source, one.advice))
    assert "gloo, torch 2.13.0, Python 3.11, Linux, 2 cores, 23.5 GiB, no GPU" in page


def test_a_second_machine_says_what_it_saw_where_its_verdict_is_another(here):
    other = Reports(
        machine=machine(torch="2.11.0", gpus=1),
        seconds=70.0,
        claims=[report("C04", Verdict.HOLDS, "It waited.")],
    )
    page = markdown([here, other])
    found = rows(page)
    assert "**holds**: It waited." in found["C04"]
    assert "| not run |" in found["C01"]
    assert "- **B**: gloo, torch 2.11.0" in page
    assert "1 GPU," in page
    assert "2 claims: 1 holds, 1 does not hold here; 60 s" in page
    assert "1 claims, without C01: 1 holds; 70 s" in page
    same = markdown(
        [here, Reports(machine=machine(), seconds=70.0, claims=[report("C01", observed="Seen otherwise.")])]
    )
    assert "Seen otherwise." not in same


def test_the_table_of_a_notebook_is_escaped(here):
    table = as_html([report("C01", observed="x < y")])
    assert "x &lt; y" in table
    assert table.count("<tr>") == 2


@pytest.mark.parametrize("writable", [True, False])
def test_what_was_seen_is_shown_whether_its_page_can_be_written_or_not(here, tmp_path, monkeypatch, writable):
    """The claims have run for minutes by then."""
    monkeypatch.setattr("ppwork.cli.claims.run_all", lambda *_, **__: here)
    if not writable:
        (tmp_path / "no").touch()
    page = tmp_path / "no" / "x.md"
    shown = CliRunner().invoke(app, ["claims", "--markdown", str(page), "--json"])
    assert msgspec.json.decode(shown.stdout, type=Reports) == here
    if writable:
        assert page.read_text() == markdown([here])
    else:
        assert isinstance(shown.exception, PlanError)
