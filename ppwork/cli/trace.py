"""``ppwork trace``: run anybody's program and see its calls, or see those that a folder has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ppwork.cli.options import given, path_of
from ppwork.cli.output import write_files, write_text
from ppwork.errors import PlanError, UnreadableError
from ppwork.launcher.script import LIMIT_S, launch_script
from ppwork.launcher.standstill import SaysStandstill
from ppwork.pictures.programs import program_files


def trace(
    context: typer.Context,
    program: Annotated[Path, typer.Argument(help="A program, or a folder that has recorded calls.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The program's own; those with a dash go behind `--`.")
    ] = None,
    nproc: Annotated[int, typer.Option(help="Number of ranks.")] = 2,
    limit_s: Annotated[
        float, typer.Option("--limit-s", "--limit", help="Seconds after which the program is stopped.")
    ] = LIMIT_S,
    ops: Annotated[
        bool, typer.Option("--ops", help="Record operators, too: what DDP and compiled code call. Slower.")
    ] = False,
    folder: Annotated[
        Path | None,
        typer.Option(
            "--out",
            parser=path_of,
            help="Run folder, new or empty. With a folder as PROGRAM: where the files go.",
        ),
    ] = None,
) -> None:
    """Record the calls of torch.distributed that a program makes: table, finding, picture, Perfetto trace."""
    failure = None
    if program.is_dir():
        for option in given(context):
            if option.name not in ("program", "folder"):
                what = f"{option.opts[0]} is heeded only by a program, and {program} is a folder."
                raise PlanError(what, check_first="leave it out; or which file of it is the program?")
        calls, folder = program, folder or program
    else:
        run = launch_script(
            program,
            nproc=nproc,
            arguments=tuple(arguments or ()),
            out=folder,
            check=False,
            limit_s=limit_s,
            ops=ops,
            view=lambda run_dir, _: SaysStandstill(run_dir, limit_s),
        )
        calls, folder, failure = run.run_dir, run.run_dir, run.failure
        if run.has_printed:
            write_text(repr(run))
    try:
        files = program_files(calls)
    except (PlanError, UnreadableError):
        if failure is not None:  # before its first call
            raise failure from None
        raise
    paths = write_files(folder, files, "is it yours?")
    write_text("\n".join([files["calls.txt"].decode(), *map(str, paths)]))
    if failure is not None:
        raise failure
