"""Programs of ranks that answer an exercise: as the notebooks of solutions have them, run, and judged.

The programs as they stand there are run by those notebooks, with ``--check``; a test has the others.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import nbformat
from checkout import ROOT

import ppwork as pp
from ppwork.lab.exercises.check import CheckResult


def right_program(exercise: str) -> str:
    """Return the program below the line ``%%ranks N --check EXERCISE``."""
    (path,) = (ROOT / "notebooks" / "solutions").glob(f"{exercise[:2]}-*.ipynb")
    for cell in nbformat.read(path, as_version=4).cells:
        first, _, program = cell.source.partition("\n")
        if first.startswith("%%ranks") and f"--check {exercise}" in first:
            return program + "\n"
    raise LookupError(f"no program in {path.name} answers {exercise}")


def changed(source: str, *changes: tuple[str, str]) -> str:
    """The program with these changes; each has to find its place."""
    for before, after in changes:
        assert before in source
        source = source.replace(before, after)
    return source


def verdict_of(
    exercise: str, program: str, folder: Path, *, ranks: int = 2, limit_s: float = 30
) -> CheckResult:
    """What the exercise says of a program, run in this folder."""
    path = folder / "my_program.py"
    path.write_text(program)
    # A program may write a file beside itself: not into the checkout, where the next check finds it.
    with contextlib.chdir(folder):
        run = pp.launch_script(path, nproc=ranks, out=folder / "run", check=False, limit_s=limit_s)
        return pp.check(exercise, run)
