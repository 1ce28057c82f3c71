"""The course as its notebooks have it: the lessons, what their cards say, which half-day is theirs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.errors import PlanError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

PATTERN = "[0-9][0-9]-*.ipynb"


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """What the outputs of a lesson come from; `ppwork nb refresh` writes it down."""

    ppwork: str
    torch: str
    python: str
    backend: str
    device: str

    @property
    def text(self) -> str:
        """In one line, for the foot of a slide."""
        versions = f"ppwork {self.ppwork} · torch {self.torch} · Python {self.python}"
        return f"{versions} · {self.backend} on {self.device}"


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A lesson's metadata, which are its card as well."""

    lesson: int
    question: str
    minutes: int
    ranks: int
    runs_on: tuple[str, ...]
    goals: tuple[str, ...] = ()
    needs: str = ""
    expect: tuple[str, ...] = ()
    """What usually goes wrong for learners."""
    ran: Ran | None = None
    """``None``: never refreshed since this is written down."""

    @property
    def number(self) -> str:
        """The lesson's number as everybody writes it: two digits."""
        return f"{self.lesson:02d}"


@dataclass(frozen=True)
class Lesson:
    """One lesson, read from its notebook."""

    file: str
    card: Card
    cells: Sequence[Any]
    """As nbformat reads them: sources and outputs are whole strings."""


@dataclass(frozen=True)
class HalfDay:
    """Some lessons that are taught in one go."""

    name: str
    """Of its deck's file."""
    title: str
    numbers: range


HALF_DAYS = (
    HalfDay("first-half-day", "First half-day", range(8)),
    HalfDay("second-half-day", "Second half-day", range(8, 15)),
)


def lessons_in(folder: Path) -> list[Lesson]:
    """Return the lessons of a folder, in their order.

    Raises:
        PlanError: There is none, or one of them is no notebook or has no card in its metadata.
    """
    found = sorted((_read(path) for path in folder.glob(PATTERN)), key=lambda lesson: lesson.card.lesson)
    if not found:
        raise PlanError(
            f"There is no lesson in {folder}.", check_first="--lessons, or the repository's folder"
        )
    return found


def by_half_day(lessons: Sequence[Lesson]) -> dict[HalfDay, list[Lesson]]:
    """Return the lessons of each half-day that has any."""
    found = {half: [one for one in lessons if one.card.lesson in half.numbers] for half in HALF_DAYS}
    return {half: members for half, members in found.items() if members}


def _read(path: Path) -> Lesson:
    import nbformat

    try:
        notebook = nbformat.reads(path.read_text(), as_version=4)  # type: ignore[no-untyped-call]
    except (nbformat.reader.NotJSONError, nbformat.ValidationError) as error:
        raise PlanError(
            f"The file {path} is no notebook.", check_first="a file *.ipynb of Jupyter"
        ) from error
    try:
        card = msgspec.convert(notebook.metadata.get("ppwork"), Card)
    except msgspec.ValidationError as error:
        raise PlanError(
            f"The lesson {path} has no whole card in metadata.ppwork: {error}.",
            check_first="the metadata of a lesson that has one",
        ) from error
    return Lesson(path.name, card, notebook.cells)
