"""``ppwork sweep``: a notebook at every point of a grid, its runs in one table and one picture."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ppwork.cli.options import path_of
from ppwork.cli.output import err, out, write_json, write_text
from ppwork.errors import PlanError
from ppwork.lab.parameters import refuse_unknown
from ppwork.lab.sweep.picture import sweep_picture
from ppwork.lab.sweep.sweep import POINT_LIMIT_S, Outcome, Point, grid_of, run_sweep, sweep_folder
from ppwork.lab.sweep.table import MEASURES, SweepTable, as_csv, as_table, collect
from ppwork.records.files import write_whole

NOT_ALL = 1
"""Exit code: some point did not end well; the table says which."""
TABLE_FILES, PICTURE, FINDING = ("table.csv", "table.json"), "sweep.png", "sweep.txt"


def sweep(
    notebook: Annotated[Path, typer.Argument(help="A lesson, or any notebook with a parameters cell.")],
    grid: Annotated[list[str], typer.Option(help="NAME=VALUE,VALUE: an axis of the grid; repeat.")],
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="NAME=VALUE at every point; repeat.")
    ] = None,
    out_dir: Annotated[
        Path | None,
        typer.Option("--out", parser=path_of, help="New folder, or that of a sweep to be continued."),
    ] = None,
    measure: Annotated[str, typer.Option(help=f"What to draw: {', '.join(MEASURES)}.")] = "period_ms",
    limit_s: Annotated[float, typer.Option(min=1, help="Hard limit on each point.")] = POINT_LIMIT_S,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON only.")] = False,
) -> None:
    """Execute a notebook at every point of a grid and collect the summaries of its runs.

    The same command again goes on where it ended: points that ended well are kept, the others run again.
    """
    refuse_unknown([measure], dict.fromkeys(MEASURES), "a summary")
    sweep_grid = grid_of(notebook, grid, set_ or ())
    folder = sweep_folder(out_dir, sweep_grid)
    number = len(sweep_grid.points)

    def tell(point: Point, outcome: Outcome) -> None:
        write_tables(folder)
        if not as_json:
            why = f": {outcome.why}" if outcome.why else ""
            text = f"{point.number}/{number} {point.text}: {outcome.state}, {outcome.seconds:.0f} s{why}"
            write_text(text, to=err)

    try:
        run_sweep(notebook, sweep_grid, folder, limit_s=limit_s, progress=tell)
    finally:  # also what a Ctrl-C has left
        entries = write_tables(folder)
    finding = write_picture(folder, entries, measure)
    if as_json:
        write_json(entries)
    else:
        out.print(as_table(entries, measure))
        write_text("\n".join([*entries.legend, "", finding, str(folder)]))
    if entries.not_ok:
        raise typer.Exit(NOT_ALL)


def write_tables(folder: Path) -> SweepTable:
    """Write the table of a sweep as far as it has come, as CSV and as JSON."""
    entries = collect(folder)
    texts = (as_csv(entries).encode(), msgspec.json.format(msgspec.json.encode(entries), indent=2))
    for name, text in zip(TABLE_FILES, texts, strict=True):
        write_whole(folder / name, text)
    return entries


def write_picture(folder: Path, entries: SweepTable, measure: str) -> str:
    """Write picture and finding of a sweep; where there is nothing to draw, return why."""
    try:
        picture = sweep_picture(entries, measure)
    except PlanError as error:
        return error.what
    write_whole(folder / PICTURE, picture.png())
    write_whole(folder / FINDING, f"{picture.finding}\n".encode())
    return picture.finding
