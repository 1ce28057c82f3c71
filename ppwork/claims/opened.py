"""One claim opened up: its programs, what each rank saw, the verdict, and what to do about it."""

from __future__ import annotations

import html
import re
from dataclasses import dataclass
from typing import Any

from ppwork.claims.catalogue import claim_of
from ppwork.claims.claim import Program, RankSeen
from ppwork.claims.report import ClaimReport
from ppwork.errors import PlanError
from ppwork.pictures.source import source_of
from ppwork.pictures.tables import text_html

MOMENT = re.compile(r"(^|_)(called|came|returned)$")
"""Notes of these names are moments on the machine's clock, if they are times at all."""
LONGEST = 160
"""Characters of an error or a note that are shown."""
PLACE = 'style="text-align:left; vertical-align:top"'
HEAD = f'{PLACE[:-1]}; min-width:6em; max-width:14em"'
WRAPPED = 'style="font-family:monospace; white-space:pre-wrap; text-align:left; margin:0"'


@dataclass(frozen=True)
class OpenedUp:
    """A claim for the end of a cell, or for the terminal."""

    report: ClaimReport
    programs: tuple[str, ...]
    """Those that are shown, by name."""

    def __repr__(self) -> str:
        report = self.report
        lines = [f"{report.id}: {report.statement}", f"source: {report.source}", ""]
        for name, program in self._shown():
            lines += [f"--- {name} ({_bounds(program)})", _source(program), ""]
            lines += [f"rank {rank}: {text}" for rank, text in enumerate(self._ranks(name))]
            lines.append("")
        return "\n".join(
            [*lines, f"verdict: {report.verdict}", f"here: {report.observed}", f"so: {report.advice}"]
        )

    def _repr_html_(self) -> str:
        report = self.report
        rows = [
            _row(f"<b>{report.id}</b>", f"<b>{text_html(report.statement)}</b><br>{text_html(report.source)}")
        ]
        for name, program in self._shown():
            code = f"<pre {WRAPPED}>{html.escape(_source(program))}</pre>"
            bounds = re.sub(r"([_=])", r"\1<wbr>", text_html(_bounds(program)))
            rows.append(_row(f"{text_html(name)}<br>({bounds})", code))
            rows += [_row(f"rank {rank}", text_html(text)) for rank, text in enumerate(self._ranks(name))]
        ending = {"verdict": f"<b>{report.verdict}</b>", "here": text_html(report.observed)}
        rows += [_row(head, body) for head, body in {**ending, "so": text_html(report.advice)}.items()]
        return f"<table>{''.join(rows)}</table>"

    def _shown(self) -> list[tuple[str, Program]]:
        programs = claim_of(self.report.id).programs
        return [(name, programs[name]) for name in self.programs]

    def _ranks(self, name: str) -> list[str]:
        ranks = self.report.seen.get(name, [])
        start = min((moment for rank in ranks for moment in moments(rank).values()), default=0.0)
        return [rank_text(rank, start) for rank in ranks]


def open_up(report: ClaimReport, *programs: str) -> OpenedUp:
    """Open a claim that was run: program, what each rank saw, verdict, what to do.

    Args:
        report: From ``run``, or one of those of ``run_all``.
        programs: Names of the programs to show; default: all.

    Raises:
        PlanError: The claim has no program of that name.
    """
    names = tuple(claim_of(report.id).programs)
    for name in programs:
        if name not in names:
            raise PlanError(
                f"Claim {report.id} has no program {name!r}.", check_first=f"one of {', '.join(names)}"
            )
    return OpenedUp(report, programs or names)


def moments(seen: RankSeen) -> dict[str, float]:
    """Return the notes that are moments, in seconds of the machine's clock; all ranks share it."""
    return {key: v for key, v in seen.notes.items() if isinstance(v, float) and MOMENT.search(key)}


def rank_text(seen: RankSeen, start: float) -> str:
    """Return what one rank did, in one line; moments in seconds from ``start``."""
    when = {key: f"at {moment - start:.3f} s" for key, moment in moments(seen).items()}
    notes = "; ".join(f"{key}: {when.get(key) or _short(value)}" for key, value in seen.notes.items())
    how = str(seen.ended)
    if seen.error_type:
        how += f" {seen.error_type}: {_short(_reason(seen.error))}"
    if seen.exit_code:
        how += f" (exit {seen.exit_code})" if seen.exit_code > 0 else f" (signal {-seen.exit_code})"
    where = f" at `{seen.line}`" if seen.line else ""
    return f"{how}{where} after {seen.seconds:.2f} s{f'; it noted {notes}' if notes else ''}"


def _reason(error: str) -> str:
    """Leave out the file of gloo's in front of the reason, which is where it was built."""
    return re.sub(r"^\[/\S+\] ", "", error)


def _short(value: Any) -> str:  # noqa: ANN401  whatever JSON carries
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    text = " ".join(_reason(text).split())
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 1]}…"


def _bounds(program: Program) -> str:
    bounds = [f"{program.ranks} rank{'s' * (program.ranks > 1)}", f"at most {program.limit_s:g} s"]
    return ", ".join([*bounds, *(f"{name}={value}" for name, value in program.environment.items())])


def _source(program: Program) -> str:
    return source_of(f"ppwork.claims.programs.{program.path}")


def _row(head: str, body: str) -> str:
    return f"<tr><td {HEAD}>{head}</td><td {PLACE}>{body}</td></tr>"
