"""Reports of claims that were run, and their page and table; ``opened`` shows one with its programs."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ppwork.claims.catalogue import CLAIMS
from ppwork.claims.claim import RankSeen, Verdict
from ppwork.errors import PlanError
from ppwork.pictures.tables import Table

INTRODUCTION = """# Claims about `torch.distributed`, tried

Each row was run on the machine named in its column by `ppwork claims`: real ranks, a program of a few lines,
and a verdict made of nothing but what these ranks saw. `ppwork claims C04 --show` shows the program, what
each rank saw and what to do about it. A verdict speaks of that machine, backend and version: run it on yours.
A further column says what was seen only where its verdict differs from the first. A claim that is newer than
a run was not run there. The seconds are of the whole run, with whatever else that machine had to do.
"""


class ClaimReport(msgspec.Struct, frozen=True, kw_only=True):
    """Verdict of one claim on this machine, with what it rests on."""

    id: str
    statement: str
    source: str
    theme: str
    verdict: Verdict
    observed: str
    advice: str
    seconds: float
    seen: dict[str, list[RankSeen]]
    """By program, what each rank did: what the verdict rests on."""

    def _repr_html_(self) -> str:
        return as_html([self])

    def __repr__(self) -> str:
        return (
            f"{self.id} {self.verdict}: {self.statement}\n  here: {self.observed}\n  so: {self.advice}\n  "
            f"source: {self.source}"
        )


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """Where and with what the claims were run."""

    cpus: int
    memory_gib: float
    gpus: int
    system: str
    python: str
    torch: str
    ppwork: str
    backend: str
    date: str


class Reports(msgspec.Struct, frozen=True, kw_only=True):
    """A run of claims."""

    machine: Machine
    seconds: float
    claims: list[ClaimReport]

    def _repr_html_(self) -> str:
        return as_html(self.claims)

    def __repr__(self) -> str:
        return "\n".join(f"{claim.id} {claim.verdict}" for claim in self.claims)

    def __getitem__(self, claim_id: str) -> ClaimReport:
        """Return one of them by its id.

        Raises:
            PlanError: It was not run.
        """
        for claim in self.claims:
            if claim.id == claim_id:
                return claim
        ran = ", ".join(claim.id for claim in self.claims)
        raise PlanError(f"Claim {claim_id!r} was not run.", check_first=f"one of {ran}")

    @property
    def counts(self) -> dict[str, int]:
        """Number of claims by verdict."""
        return {verdict.value: sum(c.verdict is verdict for c in self.claims) for verdict in Verdict}

    @property
    def errors(self) -> list[str]:
        """The obstacle to a verdict, for each claim that has none."""
        return [f"{claim.id}: {claim.observed}" for claim in self.claims if claim.verdict is Verdict.ERROR]


def markdown(columns: Sequence[Reports]) -> str:
    """Return the page ``docs/claims.md``: one row per claim, one column per machine.

    Args:
        columns: Runs of the claims; the first one decides which rows there are. A further column says what
            was seen only where its verdict is another one.
    """
    first, lines = columns[0], [INTRODUCTION]
    lines += [
        _machine_line(letter, reports, first) for letter, reports in zip("ABCDEFGH", columns, strict=False)
    ]
    for theme in dict.fromkeys(claim.theme for claim in first.claims):
        head = ["id", "claim", *"ABCDEFGH"[: len(columns)], "what your code does"]
        rows = [
            [
                claim.id,
                f"{claim.statement} ({claim.source})",
                _verdict(claim, first=None),
                *(_cell(reports, claim) for reports in columns[1:]),
                claim.advice,
            ]
            for claim in first.claims
            if claim.theme == theme
        ]
        lines += ["", f"## {theme}", "", Table(head, rows).markdown().rstrip()]
    return "\n".join(lines) + "\n"


def _machine_line(letter: str, reports: Reports, first: Reports) -> str:
    counts = ", ".join(f"{number} {verdict}" for verdict, number in reports.counts.items() if number)
    ran = {claim.id for claim in reports.claims}
    missing = ", ".join(claim.id for claim in first.claims if claim.id not in ran)
    not_run = f", without {missing}" if missing else ""
    machine = machine_text(reports.machine)
    return f"- **{letter}**: {machine}. {len(ran)} claims{not_run}: {counts}; {reports.seconds:.0f} s in all."


def machine_text(machine: Machine) -> str:
    """Return where and with what, in one line."""
    gpus = "no GPU" if not machine.gpus else f"{machine.gpus} GPU{'s' * (machine.gpus > 1)}"
    return (
        f"{machine.backend}, torch {machine.torch}, Python {machine.python}, {machine.system}, "
        f"{machine.cpus} cores, {machine.memory_gib:g} GiB, {gpus}, ppwork {machine.ppwork}, {machine.date}"
    )


def _cell(reports: Reports, first: ClaimReport) -> str:
    claim = next((claim for claim in reports.claims if claim.id == first.id), None)
    return "not run" if claim is None else _verdict(claim, first=first)


def _verdict(claim: ClaimReport, *, first: ClaimReport | None) -> str:
    as_before = first is not None and first.verdict == claim.verdict
    return f"**{claim.verdict}**" + ("" if as_before else f": {claim.observed}")


def as_html(reports: Sequence[ClaimReport]) -> str:
    """Return claims as a table for a notebook."""
    rows = [(r.id, r.statement, str(r.verdict), r.observed, r.advice) for r in reports]
    return Table(["", "claim", "verdict", "here", "so"], rows).html()


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
    head = ["about", "sentence", f"on {reports.machine.backend}", "id"]
    return Table(head, rows, below=f"{', '.join(counts)}; torch {reports.machine.torch}.")
