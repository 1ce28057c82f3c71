"""``ppwork fault``: the catalogue as a list, and its cases run on real ranks, as a table or JSON."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path  # noqa: TC003  typer reads it
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from ppwork.errors import PlanError
from ppwork.failure import write_whole
from ppwork.fault import SUCCEEDS
from ppwork.fault_report import CAUGHT, NOT_CAUGHT, is_open
from ppwork.fault_runs import names_of, run_case
from ppwork.faults import FAULTS
from ppwork.load import busy

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ppwork.fault_report import FaultReport

NOT_CAUGHT_CODE = 1
COLUMNS = ("fault", "case", "injected", "named first", "first notice", "ranks gone", "left", "verdict")

app = typer.Typer(no_args_is_help=True, help="Break a run on purpose, and see who notices when.")
out = Console()
err = Console(stderr=True)


@app.command("list")
def list_(
    as_json: Annotated[bool, typer.Option("--json", help="The whole catalogue as JSON.")] = False,
) -> None:
    """Show every fault with its cases."""
    if as_json:
        _write(msgspec.to_builtins(FAULTS))
        return
    view = Table(box=None, pad_edge=False)
    for column in ("fault", "case", "what is injected", "where", "needs"):
        view.add_column(column, overflow="fold")
    for fault in FAULTS:
        view.add_row(f"[bold]{fault.id}", "", f"[bold]{fault.title}", "", "")
        for case in fault.cases:
            view.add_row("", case.name, case.injected, case.place, case.needs)
    out.print(view)


@app.command()
def run(
    faults: Annotated[list[str] | None, typer.Argument(help="Ids such as F07; or --all.")] = None,
    every: Annotated[bool, typer.Option("--all", help="The whole catalogue.")] = False,
    case: Annotated[str, typer.Option(help="One case of the fault; default: all of them.")] = "",
    mesh_size: Annotated[int, typer.Option(min=2, help="Ranks of stage 1.")] = 2,
    rounds: Annotated[int, typer.Option(min=1, help="So many times, one round after the other.")] = 1,
    load: Annotated[int, typer.Option(min=0, help="So many busy processes beside it.")] = 0,
    keep: Annotated[Path | None, typer.Option(help="Keep the run folders below this new folder.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the reports as JSON only.")] = False,
    to_markdown: Annotated[Path | None, typer.Option("--markdown", help="Write the table there.")] = None,
) -> None:
    """Inject faults into small runs; exit code 1 if one that could run was not caught."""
    if every == bool(faults):
        raise PlanError("No fault was named.", check_first="ppwork fault run F07, or ppwork fault run --all")
    names = names_of(faults or (), case)
    reports: list[FaultReport] = []
    with busy(load):
        for round_ in range(rounds):
            folder = keep / f"round-{round_ + 1}" if keep is not None else None
            for name in names:
                report = run_case(name, mesh_size=mesh_size, keep=folder)
                err.print(_line(report), markup=False, highlight=False, soft_wrap=True)
                reports.append(report)
    if to_markdown is not None:
        write_whole(to_markdown, markdown(reports).encode())
    if as_json:
        _write([msgspec.to_builtins(report) for report in reports])
    else:
        out.print(table(reports))
    if any(is_open(report) for report in reports):
        raise typer.Exit(NOT_CAUGHT_CODE)


def table(reports: Iterable[FaultReport]) -> Table:
    """Return the rows for a terminal."""
    view = Table(box=None, pad_edge=False)
    for column in COLUMNS:
        view.add_column(column, overflow="fold")
    for row in rows(reports):
        colour = "[red]" if row[-1].startswith(NOT_CAUGHT) else ""
        view.add_row(*row[:-1], colour + row[-1])
    return view


def markdown(reports: Iterable[FaultReport]) -> str:
    """Return the rows as a table in Markdown."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *rows(reports)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rows(reports: Iterable[FaultReport]) -> list[tuple[str, ...]]:
    """Return one row per case; of several rounds the latest first notice and the latest end."""
    by_case: dict[tuple[str, str], list[FaultReport]] = defaultdict(list)
    for report in reports:
        by_case[report.fault, report.case].append(report)
    made: list[tuple[str, ...]] = []
    for (fault, case), found in by_case.items():
        last = max(found, key=lambda report: (is_open(report), report.gone_s or 0.0))
        caught = sum(report.verdict == CAUGHT for report in found)
        verdict = last.verdict if len(found) == 1 else f"{last.verdict} {caught}/{len(found)}"
        named = "" if last.named is None else f"rank {last.named}: {last.error_type}"
        left = str(sum(len(report.left) for report in found))
        made.append((fault, case, _injected(last), named, _noticed(found), _gone(last), left, verdict))
    return made


def _injected(report: FaultReport) -> str:
    if report.injected_rank is None:
        return "" if report.injected_ns is None else "outside"
    chunk = f", chunk {report.injected_chunk}" if (report.injected_chunk or -1) >= 0 else ""
    return f"rank {report.injected_rank}{chunk}"


def _gone(report: FaultReport) -> str:
    if report.gone_s is None or report.outcome == SUCCEEDS:  # a run that goes on to its end is not waited for
        return ""
    return f"{report.gone_s:.2f} s"


def _noticed(found: list[FaultReport]) -> str:
    last = max((r.noticed for r in found if r.noticed), key=lambda notice: notice.after_s, default=None)
    return f"rank {last.rank}: {last.error_type}, {last.after_s:.3f} s" if last else ""


def _line(report: FaultReport) -> str:
    gone = f", ranks gone after {_gone(report)}" if _gone(report) else ""
    why = "".join(f"\n    {reason}" for reason in report.reasons)
    return f"{report.fault}/{report.case}: {report.verdict}{gone}{why}"


def _write(data: Any) -> None:  # noqa: ANN401  JSON types
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n")
