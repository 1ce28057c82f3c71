"""The claims that were tried, a row each: what it is about, the sentence, the verdict."""

from __future__ import annotations

from ppwork.claims.catalogue import CLAIMS
from ppwork.claims.report import Reports
from ppwork.pictures.tables import Table


def table(reports: Reports) -> Table:
    """Return a row for each claim of a run, in the order of the catalogue, one theme after the other.

    Args:
        reports: From ``run_all``. The head of the table names the backend of that run.
    """
    verdicts = {report.id: report.verdict for report in reports.claims}
    themes = list(dict.fromkeys(claim.theme for claim in CLAIMS.values()))
    tried = [claim for claim in CLAIMS.values() if claim.id in verdicts]
    rows = [
        [claim.theme, claim.statement.removesuffix("."), str(verdicts[claim.id]), claim.id]
        for claim in sorted(tried, key=lambda claim: themes.index(claim.theme))
    ]
    counts = [f"{number} {verdict}" for verdict, number in reports.counts.items() if number]
    head = ["about", "sentence", f"on {reports.machine.backend}", "to open it"]
    return Table(head, rows, below=f"{', '.join(counts)}; torch {reports.machine.torch}.")
