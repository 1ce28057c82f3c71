"""The documentation's claims, tried live on the machine they are read on."""

from ppwork.claims.claim import Claim, Verdict
from ppwork.claims.runs import ClaimReport, Reports, run, run_all

__all__ = ["Claim", "ClaimReport", "Reports", "Verdict", "run", "run_all"]
