"""``ppwork claims``: the documentation's claims, run here."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ppwork.claims.catalogue import CLAIMS
from ppwork.claims.claim import Verdict
from ppwork.claims.opened import open_up
from ppwork.claims.report import ClaimReport, Reports, machine_text, markdown
from ppwork.claims.runs import PARALLEL, run_all
from ppwork.cli.options import path_of
from ppwork.cli.output import err, out, write_files, write_json, write_text
from ppwork.errors import PlanError
from ppwork.pictures.tables import Table

DEFECT = 1
"""Exit code: some claim could not be judged, which is a defect of its program."""


def claims(
    ids: Annotated[
        list[str] | None, typer.Argument(help="Ids of claims, as --list has them; default: all.")
    ] = None,
    show: Annotated[
        bool, typer.Option("--show", help="Show the programs, too, and what each rank saw.")
    ] = False,
    list_: Annotated[bool, typer.Option("--list", help="List the claims and run nothing.")] = False,
    backend: Annotated[str, typer.Option(help="gloo or nccl.")] = "gloo",
    parallel: Annotated[int, typer.Option(min=1, help="Programs at a time.")] = PARALLEL,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything that was seen as JSON.")] = False,
    to_markdown: Annotated[
        Path | None,
        typer.Option(
            "--markdown", parser=path_of, help="Write the report to this file, such as docs/claims.md."
        ),
    ] = None,
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="What --json printed on another machine: a column more; repeatable."),
    ] = None,
) -> None:
    """Run what is said about torch.distributed, here and now, and say which of it holds."""
    if list_:
        for claim in CLAIMS.values():
            write_text(f"{claim.id:5} {claim.statement}")
        return
    other_machines = [_read(path) for path in beside or ()]
    reports = run_all(ids or (), backend=backend, parallel=parallel, progress=_tell)
    if as_json:
        write_json(reports)
    elif show:
        for report in reports.claims:
            write_text(f"{open_up(report)!r}\n")
    else:
        rows = [[claim.id, claim.statement, str(claim.verdict), claim.observed] for claim in reports.claims]
        out.print(Table(["id", "claim", "verdict", "here"], rows))
        write_text(_summary(reports))
    if to_markdown is not None:  # after what took minutes to see is shown
        page = markdown([reports, *other_machines]).encode()
        write_files(to_markdown.parent, {to_markdown.name: page}, "--markdown: is it yours?")
    if any(report.verdict is Verdict.ERROR for report in reports.claims):
        raise typer.Exit(DEFECT)


def _tell(report: ClaimReport) -> None:
    write_text(f"{report.id} {report.verdict} ({report.seconds:.1f} s)", to=err)


def _read(path: Path) -> Reports:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Reports)
    except (OSError, msgspec.MsgspecError) as error:
        raise PlanError(
            f"The run of claims {path} does not read: {error}.",
            check_first="was it made by `ppwork claims --json`?",
        ) from error


def _summary(reports: Reports) -> str:
    slowest = sorted((report.seconds for report in reports.claims), reverse=True)
    share = sum(slowest[:10]) / max(sum(slowest), 1e-9)
    counts = ", ".join(f"{number} {verdict}" for verdict, number in reports.counts.items() if number)
    return (
        f"{len(reports.claims)} claims: {counts}\n{reports.seconds:.0f} s in all; the slowest ten are "
        f"{share:.0%} of the programs' time\n{machine_text(reports.machine)}"
    )
