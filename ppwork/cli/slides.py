"""``ppwork slides``: the lessons, as they were last executed, as decks and an instructor's notes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ppwork.cli.options import path_of
from ppwork.cli.output import write_files, write_text
from ppwork.errors import UnavailableError
from ppwork.lab.course.instructor import notes
from ppwork.lab.course.lessons import by_half_day, lessons_in
from ppwork.version import WHEEL

NOTES_FILE = "INSTRUCTOR.md"


def slides(
    out_dir: Annotated[Path, typer.Option("--out", parser=path_of, help="Folder for the decks.")] = Path(
        "slides"
    ),
    lessons_dir: Annotated[Path, typer.Option("--lessons", help="Folder of the notebooks.")] = Path(
        "notebooks"
    ),
) -> None:
    """Write one deck per half-day from the slides of the executed lessons, and the instructor's notes.

    Nothing is run: figures and numbers are those in the notebooks, and each slide says what they come from.
    """
    files = {name: text.encode() for name, text in built(lessons_dir).items()}
    for path, data in zip(write_files(out_dir, files, "--out"), files.values(), strict=True):
        write_text(f"{path}  {len(data) / 1e6:.2f} MB")


def built(lessons_dir: Path) -> dict[str, str]:
    """Return the texts to write, by file name.

    Raises:
        PlanError: There are no lessons, or one cannot be shown.
        UnavailableError: The extra ``lab`` is not installed.
    """
    try:
        from ppwork.lab.course.deck import deck
    except ModuleNotFoundError as error:
        what = f"{error.name} is not installed."
        raise UnavailableError(what, check_first=f'pip install "{WHEEL}[lab]"') from error
    lessons = lessons_in(lessons_dir)
    decks = {f"{half.name}.html": deck(half, lessons) for half in by_half_day(lessons)}
    return {**decks, NOTES_FILE: notes(lessons)}
