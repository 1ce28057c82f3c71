"""Claims as they come out of a run, made up for pictures and pages."""

from __future__ import annotations

from ppwork.claims.catalogue import claim_of
from ppwork.claims.claim import Verdict
from ppwork.claims.report import ClaimReport


def report(claim_id, verdict=Verdict.HOLDS, observed="It was so.", **seen) -> ClaimReport:
    """A claim of the catalogue with this verdict; keywords are what the ranks of a program saw."""
    claim = claim_of(claim_id)
    return ClaimReport(
        id=claim.id,
        statement=claim.statement,
        source=claim.source,
        theme=claim.theme,
        verdict=verdict,
        observed=observed,
        advice=claim.advice,
        seconds=1.0,
        seen={name.replace("_", " "): ranks for name, ranks in seen.items()},
    )
