"""Every claim can come out either way, and only by what was seen."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from checkout import ROOT

from ppwork.claims.catalogue import CLAIMS, claim_of
from ppwork.claims.claim import Verdict
from ppwork.claims.runs import judged
from ppwork.errors import PlanError

CASES = {
    claim_id: cases
    for path in sorted(Path(__file__).with_name("cases").glob("claim_cases_*.py"))
    for claim_id, cases in importlib.import_module(path.stem).CASES.items()
}
PROGRAMS = ROOT / "ppwork" / "claims" / "programs"


def test_every_claim_has_cases_and_every_case_a_claim():
    assert set(CASES) == set(CLAIMS)


@pytest.mark.parametrize("claim_id", CLAIMS)
def test_a_claims_verdict_follows_what_was_seen(claim_id):
    claim = claim_of(claim_id)
    found = [(judged(claim, seen), wanted) for wanted, seen in CASES[claim_id]]
    assert [finding.verdict for finding, _ in found] == [wanted for _, wanted in found]
    assert len({wanted for _, wanted in found}) > 1, "only one verdict was tried"
    assert all(finding.observed for finding, _ in found)


@pytest.mark.parametrize("claim_id", CLAIMS)
def test_a_claim_without_its_notes_is_an_error_and_no_verdict(claim_id):
    claim = claim_of(claim_id)
    assert judged(claim, {name: [] for name in claim.programs}).verdict is Verdict.ERROR


@pytest.mark.parametrize("claim_id", CLAIMS)
def test_a_claim_is_complete_and_its_programs_exist(claim_id):
    claim = claim_of(claim_id)
    assert claim.programs
    for text in (claim.statement, claim.source, claim.advice, claim.theme):
        assert len(text) > 3
    assert claim.statement.endswith(".")
    assert set(claim.backends) <= {"gloo", "nccl"}
    for program in claim.programs.values():
        module, _, name = program.path.partition(":")
        assert f"\ndef {name}(world" in (PROGRAMS / f"{module}.py").read_text()


def test_an_unknown_claim_is_refused_with_the_known_ones():
    with pytest.raises(PlanError, match="no claim 'C99'") as caught:
        claim_of("C99")
    assert "C01" in caught.value.check_first
