"""``ppwork doctor``: is this machine ready, and what will run here?"""

from __future__ import annotations

import sys
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from ppwork.doctor import HEAD, Report, doctor
from ppwork.doctor_rows import Verdict

NOT_READY = 1
"""Exit code: the main job cannot run on gloo here."""
STYLES = {Verdict.FINE: "green", Verdict.LIMITED: "yellow", Verdict.MISSING: "red"}

out = Console()


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print rows and findings as JSON only.")] = False,
) -> None:
    """Say what this machine has, what will run here, and what to do about the rest.

    Exit code 1: the main job cannot run on gloo here.
    """
    report = doctor()
    if as_json:
        answer = {"ready": report.ready, **msgspec.to_builtins(report)}
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode() + "\n")
    else:
        out.print(table(report))
    if not report.ready:
        raise typer.Exit(NOT_READY)


def table(report: Report) -> Table:
    """Return both parts as one table, so that their columns stand under each other."""
    view = Table(*HEAD, box=None, pad_edge=False)
    for column in view.columns:
        column.overflow = "fold"
    for row in report.here:
        view.add_row(row.what, row.found, f"[{STYLES[row.verdict]}]{row.verdict.value}", row.todo)
    view.add_row("")
    view.add_row("[bold]what will run here")
    for row in report.runs:
        view.add_row(row.what, row.found, f"[{STYLES[row.verdict]}]{row.verdict.value}", row.todo)
    return view
