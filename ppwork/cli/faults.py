"""``ppwork fault``: the catalogue as a list, and its cases run on real ranks, as a table or JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from ppwork.cli.options import path_of
from ppwork.cli.output import err, out, write_json, write_text
from ppwork.errors import PlanError
from ppwork.faults.catalogue import FAULTS
from ppwork.faults.fault import SUCCEEDS
from ppwork.faults.report import FaultReport, is_open
from ppwork.faults.runs import names_of, run_case
from ppwork.pictures.tables import BOLD, Cell, Table

NOT_CAUGHT_CODE = 1
COLUMNS = ("fault", "case", "injected", "named first", "first notice", "ranks gone", "left", "verdict")

app = typer.Typer(no_args_is_help=True, help="Break a run on purpose, and see who notices when.")


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="The whole catalogue as JSON.")] = False,
) -> None:
    """Show every fault with its cases."""
    if as_json:
        write_json(FAULTS)
        return
    lines: list[Sequence[Cell]] = []
    for fault in FAULTS:
        lines.append([(fault.id, BOLD), "", (fault.title, BOLD), "", ""])
        lines += [["", case.name, case.injected, case.place, case.needs] for case in fault.cases]
    out.print(Table(["fault", "case", "what is injected", "where", "needs"], lines))


@app.command()
def run(
    faults: Annotated[
        list[str] | None, typer.Argument(help="Ids such as F07, as `ppwork fault list` has them.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="The whole catalogue.")] = False,
    case: Annotated[str, typer.Option(help="One case of the fault; default: all of them.")] = "",
    mesh_size: Annotated[int, typer.Option(min=2, help="Ranks of stage 1.")] = 2,
    backend: Annotated[str, typer.Option(help="gloo, or nccl: all ranks then share one GPU.")] = "gloo",
    keep: Annotated[
        Path | None, typer.Option(parser=path_of, help="Keep the run folders below this new folder.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the reports as JSON only.")] = False,
) -> None:
    """Inject faults into small runs; exit with 1 if a fault was not caught."""
    if every == bool(faults):
        what = f"{', '.join(faults)} and --all exclude each other." if faults else "No fault was named."
        raise PlanError(what, check_first="ppwork fault run F07, or ppwork fault run --all")
    if every and case:
        what = "--case names a case of one fault, and --all is all of them."
        raise PlanError(what, check_first=f"ppwork fault run F07 --case {case}, or --all alone")
    reports: list[FaultReport] = []
    for name in names_of(faults or (), case):
        report = run_case(name, mesh_size=mesh_size, backend=backend, keep=keep)
        write_text(line(report), to=err)
        reports.append(report)
    if as_json:
        write_json(reports)
    else:
        out.print(reports_table(reports))
    if any(is_open(report) for report in reports):
        raise typer.Exit(NOT_CAUGHT_CODE)


def reports_table(reports: Iterable[FaultReport]) -> Table:
    """Return a row for each case; a verdict that is not good stands out."""
    rows = [
        [*row(report)[:-1], (report.verdict, "red") if is_open(report) else report.verdict]
        for report in reports
    ]
    return Table(COLUMNS, rows)


def row(report: FaultReport) -> tuple[str, ...]:
    """Return the cells of one case, in the order of ``COLUMNS``."""
    named = "" if report.named is None else f"rank {report.named}: {report.error_type}"
    notice = report.noticed
    noticed = f"rank {notice.rank}: {notice.error_type}, {notice.after_s:.3f} s" if notice else ""
    outcome = (named, noticed, _gone(report), str(len(report.left)), report.verdict)
    return (report.fault, report.case, _injected(report), *outcome)


def line(report: FaultReport) -> str:
    """Return the line of a case that has just ended, with the reasons if it was not caught."""
    gone = f", ranks gone after {_gone(report)}" if _gone(report) else ""
    why = "".join(f"\n    {reason}" for reason in report.reasons)
    return f"{report.fault}/{report.case}: {report.verdict}{gone}{why}"


def _injected(report: FaultReport) -> str:
    if report.injected_rank is None:
        return "" if report.injected_ns is None else "outside"
    index = -1 if report.injected_chunk is None else report.injected_chunk
    chunk = f", chunk {index}" if index >= 0 else ""
    return f"rank {report.injected_rank}{chunk}"


def _gone(report: FaultReport) -> str:
    if report.gone_s is None or report.outcome == SUCCEEDS:  # a run that goes on to its end is not waited for
        return ""
    return f"{report.gone_s:.2f} s"
