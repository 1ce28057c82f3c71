"""``ppwork sweep``: a notebook at every point of a grid, its runs in one table and one picture."""

from __future__ import annotations

import sys
from pathlib import Path  # noqa: TC003  typer reads the annotations
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from ppwork.errors import PlanError
from ppwork.failure import write_whole
from ppwork.grid import grid_of
from ppwork.parameters import refuse_unknown
from ppwork.plot import as_png
from ppwork.plot_sweep import plot_sweep, sweep_finding
from ppwork.sweep import POINT_LIMIT_S, run_sweep, sweep_folder
from ppwork.sweep_table import MEASURES, SweepTable, as_csv, as_lines, collect, legend

if TYPE_CHECKING:
    from ppwork.grid import Point
    from ppwork.sweep import Outcome

NOT_ALL = 1
"""Exit code: some point did not end well; the table says which."""
TABLE_FILES, PICTURE, FINDING = ("table.csv", "table.json"), "sweep.png", "sweep.txt"

out = Console()
err = Console(stderr=True)


def sweep(
    notebook: Annotated[Path, typer.Argument(help="A lesson, or any notebook with a parameters cell.")],
    grid: Annotated[list[str], typer.Option(help="NAME=VALUE,VALUE: an axis of the grid; repeat.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE at every point; repeat.")
    ] = None,
    out_dir: Annotated[
        Path | None, typer.Option("--out", help="New folder, or that of a sweep to be continued.")
    ] = None,
    measure: Annotated[str, typer.Option(help=f"What to draw: {', '.join(MEASURES)}.")] = "period_ms",
    limit_s: Annotated[float, typer.Option(min=1, help="Hard limit on each point.")] = POINT_LIMIT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON only.")] = False,
) -> None:
    """Execute a notebook at every point of a grid and collect the summaries of its runs.

    The same command again goes on where it ended: points that ended well are kept, the others run again.
    """
    refuse_unknown([measure], dict.fromkeys(MEASURES), "a summary")
    wanted = grid_of(notebook, grid, set_ or ())
    folder = sweep_folder(out_dir, wanted)
    number = len(wanted.points)

    def tell(point: Point, outcome: Outcome) -> None:
        write_tables(folder)
        if not as_json:
            why = f": {outcome.why}" if outcome.why else ""
            text = f"{point.number}/{number} {point.text}: {outcome.state}, {outcome.seconds:.0f} s{why}"
            err.print(text, markup=False, highlight=False, soft_wrap=True)

    try:
        run_sweep(notebook, wanted, folder, limit_s=limit_s, progress=tell)
    finally:  # also what a Ctrl-C has left
        table = write_tables(folder)
    said = write_picture(folder, table, measure)
    if as_json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(table), indent=2).decode() + "\n")
    else:
        out.print(_view(table, measure))
        lines = [*legend(table, table.run_numbers), "", said, str(folder)]
        out.print("\n".join(lines), markup=False, highlight=False, soft_wrap=True)
    if table.not_ok:
        raise typer.Exit(NOT_ALL)


def write_tables(folder: Path) -> SweepTable:
    """Write the table of a sweep as far as it has come, as CSV and as JSON."""
    table = collect(folder)
    texts = (as_csv(table).encode(), msgspec.json.format(msgspec.json.encode(table), indent=2))
    for name, text in zip(TABLE_FILES, texts, strict=True):
        write_whole(folder / name, text)
    return table


def write_picture(folder: Path, table: SweepTable, measure: str) -> str:
    """Write picture and finding of a sweep; where there is nothing to draw, return why."""
    try:
        said = sweep_finding(table, measure)
        png = as_png(plot_sweep(table, measure), alt=said)
    except PlanError as error:
        return error.what
    write_whole(folder / PICTURE, png)
    write_whole(folder / FINDING, f"{said}\n".encode())
    return said


def _view(table: SweepTable, measure: str) -> Table:
    head, rows = as_lines(table, measure)
    view = Table(*head, title=measure, title_justify="left", box=None, pad_edge=False)
    for row in rows:
        view.add_row(*row)
    return view
