"""The documentation's claims, tried live on the machine they are read on."""

from ppwork.claims.claim import Claim, Verdict
from ppwork.claims.opened import open_up
from ppwork.claims.runs import ClaimReport, Reports, run, run_all

__all__ = ["Claim", "ClaimReport", "Reports", "Verdict", "open_up", "run", "run_all"]
