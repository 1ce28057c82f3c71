"""``ppwork slides``: the lessons, as they were last executed, as decks and an instructor's notes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from ppwork.course import by_half_day, lessons_in
from ppwork.errors import PlanError
from ppwork.failure import write_whole
from ppwork.instructor import START, notes

NOTES_FILE = "INSTRUCTOR.md"

out = Console()


def slides(
    out_dir: Annotated[Path, typer.Option("--out", help="Folder for the decks.")] = Path("slides"),
    lessons_dir: Annotated[Path, typer.Option("--lessons", help="Folder of the notebooks.")] = Path(
        "notebooks"
    ),
    start: Annotated[str, typer.Option(help="HH:MM at which the first lesson begins.")] = START,
) -> None:
    """Write one deck per half-day from the marked cells of the executed lessons, and the instructor's notes.

    Nothing is run: figures and numbers are those in the notebooks, and each slide says what they come from.
    """
    files = built(lessons_dir, start)
    try:
        out_dir.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            write_whole(out_dir / name, text.encode())
    except OSError as error:
        raise PlanError(
            f"The folder {out_dir} cannot be written: {error.strerror}.", check_first="--out"
        ) from error
    for name, text in files.items():
        line = f"{out_dir / name}  {len(text.encode()) / 1e6:.2f} MB"
        out.print(line, markup=False, highlight=False, soft_wrap=True)


def built(lessons_dir: Path, start: str = START) -> dict[str, str]:
    """Return what is written, by file name.

    Raises:
        PlanError: There are no lessons, one cannot be shown, ``start`` is no time, or the extra
            ``lab`` is not installed.
    """
    try:
        from ppwork.deck import deck
    except ModuleNotFoundError as error:
        raise PlanError(f"{error.name} is not installed.", check_first='pip install "ppwork[lab]"') from error
    lessons = lessons_in(lessons_dir)
    decks = {f"{half.name}.html": deck(half, members) for half, members in by_half_day(lessons).items()}
    return {**decks, NOTES_FILE: notes(lessons, start)}
