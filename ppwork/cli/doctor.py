"""``ppwork doctor``: is this machine ready, and what will run here? And the same for a class of machines."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from ppwork.cli.hosts import show_hosts
from ppwork.cli.output import out, write_json, write_line
from ppwork.errors import PlanError
from ppwork.lab.doctor.classroom import class_line, class_table, collected
from ppwork.lab.doctor.doctor import HEAD, DoctorReport, DoctorRow, DoctorVerdict, doctor
from ppwork.launcher.nodes.places import places_of
from ppwork.pictures.tables import BOLD, Cell, Table

NOT_READY = 1
"""Exit code: the main job cannot run on gloo here; of a class: the lessons cannot be run on a machine."""
STYLES = {DoctorVerdict.FINE: "green", DoctorVerdict.LIMITED: "yellow", DoctorVerdict.MISSING: "red"}


def doctor_command(
    as_json: Annotated[bool, typer.Option("--json", help="Print rows and findings as JSON only.")] = False,
    for_class: Annotated[
        bool, typer.Option("--class", help="Print one line of JSON for the instructor: no names, no folders.")
    ] = False,
    join: Annotated[
        Path | None,
        typer.Option(
            help="Look at nothing here: show the lines of a class, from a file or folder, as a table."
        ),
    ] = None,
    on: Annotated[
        str,
        typer.Option(help="Look at nothing here: call hosts, as ssh:gpu-a,gpu-b, and show what they say."),
    ] = "",
) -> None:
    """Say what this machine has, what will run here, and what to do about the rest.

    Exit code 1: the main job cannot run on gloo here. With --class and --join: the lessons cannot be run
    here, or on one of the machines.
    """
    if on:
        show_hosts(places_of(on), as_json=as_json)
        return
    if join is not None:
        if for_class:
            raise PlanError(
                "--class and --join exclude each other.", check_first="--class makes one of the lines"
            )
        ready = _show_class(join, as_json=as_json)
    else:
        report = doctor()
        ready = report.ready
        if for_class:
            line = class_line(report)
            ready = line.ready
            write_line(line)
        elif as_json:
            write_json({"ready": report.ready, **msgspec.to_builtins(report)})
        else:
            out.print(report_table(report))
    if not ready:
        raise typer.Exit(NOT_READY)


def _show_class(place: Path, *, as_json: bool) -> bool:
    """Print the lines of a class; return whether all of its machines are ready."""
    lines = collected(place)
    if as_json:
        write_json(list(lines.values()))
    else:
        out.print(class_table(lines))
    return all(line.ready for line in lines.values())


def report_table(report: DoctorReport) -> Table:
    """Return both parts as one table, so that their columns stand under each other."""

    def cells(row: DoctorRow) -> list[Cell]:
        return [row.what, row.found, (row.verdict.value, STYLES[row.verdict]), row.todo]

    parts: list[list[Cell]] = [[""] * 4, [("what will run here", BOLD), "", "", ""]]
    return Table(HEAD, [*map(cells, report.here), *parts, *map(cells, report.runs)])
