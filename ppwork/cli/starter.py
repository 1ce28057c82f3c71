"""``ppwork new`` and ``ppwork lessons``: something to begin with, in a folder of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ppwork.cli.options import path_of
from ppwork.cli.output import write_text
from ppwork.lab.starter import copy_course, new_project


def new(
    folder: Annotated[Path, typer.Argument(parser=path_of, help="New or empty; its name is the project's.")],
) -> None:
    """Write a project with two stages, a program for torchrun, a test and a notebook; it runs at once."""
    for path in new_project(folder):
        write_text(str(path))
    stages = "--stage0 stages:Source --stage1 stages:Block"
    write_text(f"\ncd {folder}\nppwork run {stages} --mesh-size 2 --chunks 8 --depth 2 --verify")


def lessons(
    folder: Annotated[Path, typer.Argument(parser=path_of, help="New or empty.")] = Path("ppwork-course"),
) -> None:
    """Copy the course that fits this version: lessons, solutions, glossary, pages and their examples."""
    files = copy_course(folder)
    write_text(f"{len(files)} lessons\n\ncd {folder}/notebooks\njupyter lab {files[0].name}")
