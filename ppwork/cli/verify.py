"""``ppwork verify``: a loop of one's own, run with its mesh and with a mesh of one, and compared."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from ppwork.cli.options import path_of
from ppwork.cli.output import err, write_text
from ppwork.errors import PlanError, RunFailed
from ppwork.lab.run import Run
from ppwork.launcher.script import LIMIT_S, launch_script
from ppwork.plan import VERIFY_VARIABLE, Plan
from ppwork.records.folder import run_folder

SMALLEST = 3
"""Ranks of a job whose mesh can be wrong where a mesh of one is not: rank 0 and two more."""


def verify(
    program: Annotated[Path, typer.Argument(help="A program whose ranks join by `ppwork.ranks.join`.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(help="The program's own; those with a dash go behind `--`.")
    ] = None,
    nproc: Annotated[int, typer.Option(help="Number of ranks: rank 0, and the mesh.")] = SMALLEST,
    limit_s: Annotated[
        float, typer.Option("--limit-s", "--limit", help="Seconds after which each of both runs is stopped.")
    ] = LIMIT_S,
    folder: Annotated[
        Path | None, typer.Option("--out", parser=path_of, help="Folder of both runs, new or empty.")
    ] = None,
) -> None:
    """Run a loop of yours with its mesh and with a mesh of one, and compare what rank 0 got for each chunk.

    A wrong share of the weights shows, and a state that one rank did not reset. The program takes the
    number of its mesh ranks from `plane.plan.mesh_size` or from the group. `join` gets another folder.
    """
    if nproc < SMALLEST:
        raise PlanError(
            f"A mesh of one has nothing to be compared with, and --nproc was {nproc}.",
            check_first=f"--nproc {SMALLEST} is rank 0 and a mesh of 2",
        )
    with run_folder(folder) as both:
        whole, alone = (_run(program, tuple(arguments or ()), n, limit_s, both) for n in (nproc, 2))
    compared = whole.compare(alone)
    worst = compared.max_abs_diff
    if worst is None or worst > max(run.plan.allowed_difference for run in (whole, alone)):
        raise RunFailed(
            compared.finding,
            check_first="has each mesh rank its own share of the weights, and does it reset its own state? "
            f"Both runs are in {both}",
        )
    write_text(f"{compared.finding}\n{both}")


def _run(program: Path, arguments: tuple[str, ...], nproc: int, limit_s: float, both: Path) -> Run:
    """Run the program once, with a folder of the run in place of its own, and return the run."""
    name = f"mesh-of-{nproc - 1}"
    write_text(f"{program.name} with a mesh of {nproc - 1} ...", to=err)
    with _asked_to_verify(both / name):
        launch_script(
            program,
            nproc=nproc,
            arguments=arguments,
            out=both / f"{name}-output",
            limit_s=limit_s,
            record=False,
        )
    if not (both / name / Plan.FILE_NAME).exists():
        raise PlanError(
            f"{program} ran to its end, and joined no pipeline of all its ranks.",
            check_first="`with join(plan) as plane:` from ppwork.ranks, without `ranks` and `mesh`",
        )
    return Run.load(both / name)


@contextmanager
def _asked_to_verify(folder: Path) -> Iterator[None]:
    os.environ[VERIFY_VARIABLE] = str(folder.absolute())
    try:
        yield
    finally:
        del os.environ[VERIFY_VARIABLE]
