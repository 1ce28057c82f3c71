"""The documentation's claims about ``torch.distributed``, tried live on the machine they are read on.

A claim is a statement, the programs of a few lines that try it, and a judge of what their ranks noted; the
catalogue has them by theme. torch is imported by the programs alone, each rank a process of its own.

May import: ``launcher``, ``pictures``, ``runtime`` (``nccl``, in a rank), ``errors``, ``process``.
"""

from ppwork.claims.claim import Claim, Verdict
from ppwork.claims.edited import Edited, edit
from ppwork.claims.opened import open_up
from ppwork.claims.report import ClaimReport, Reports, table
from ppwork.claims.runs import run, run_all

__all__ = [
    "Claim", "ClaimReport", "Edited", "Reports", "Verdict", "edit", "open_up", "run", "run_all", "table",
]  # fmt: skip
