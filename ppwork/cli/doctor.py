"""``ppwork doctor``: is this machine ready, and what will run here?"""

from __future__ import annotations

from typing import Annotated

import msgspec
import typer

from ppwork.cli.output import out, write_json
from ppwork.lab.doctor.doctor import HEAD, Report, Row, Verdict, doctor
from ppwork.pictures.tables import BOLD, Cell, Table

NOT_READY = 1
"""Exit code: the main job cannot run on gloo here."""
STYLES = {Verdict.FINE: "green", Verdict.LIMITED: "yellow", Verdict.MISSING: "red"}


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print rows and findings as JSON only.")] = False,
) -> None:
    """Say what this machine has, what will run here, and what to do about the rest.

    Exit code 1: the main job cannot run on gloo here.
    """
    report = doctor()
    if as_json:
        write_json({"ready": report.ready, **msgspec.to_builtins(report)})
    else:
        out.print(report_table(report))
    if not report.ready:
        raise typer.Exit(NOT_READY)


def report_table(report: Report) -> Table:
    """Return both parts as one table, so that their columns stand under each other."""

    def cells(row: Row) -> list[Cell]:
        return [row.what, row.found, (row.verdict.value, STYLES[row.verdict]), row.todo]

    parts: list[list[Cell]] = [[""] * 4, [("what will run here", BOLD), "", "", ""]]
    return Table(HEAD, [*map(cells, report.here), *parts, *map(cells, report.runs)])
