"""The table of claims: a row for each that was tried, in the catalogue's order, and what came of it."""

from __future__ import annotations

from claim_reports import report

from ppwork.claims.claim import Verdict
from ppwork.claims.report import Machine, Reports, table

MACHINE = Machine(
    cpus=2, memory_gib=8.0, gpus=0, system="Linux", python="3.11", torch="2.13.0", ppwork="0.1",
    backend="gloo", date="2026-01-01",
)  # fmt: skip


def test_a_row_says_what_was_tried_and_what_came_of_it():
    """D43 stands in another file than C04, and the table has their theme once."""
    claims = [report("C03", Verdict.DOES_NOT_HOLD), report("D43"), report("C04")]
    claims.append(report("C08", Verdict.NOT_TESTABLE))
    shown = table(Reports(machine=MACHINE, seconds=1.0, claims=claims))
    assert list(shown.head) == ["about", "sentence", "on gloo", "id"]
    assert [row[-2:] for row in shown.rows] == [
        ["holds", "C04"],
        ["holds", "D43"],
        ["not testable here", "C08"],
        ["does not hold here", "C03"],
    ]
    assert shown.rows[-1][:2] == [
        "Failure and timeouts",
        "Past the timeout of its group the process crashes",
    ]
    assert shown.below == "2 holds, 1 does not hold here, 1 not testable here; torch 2.13.0."
