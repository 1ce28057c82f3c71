"""The lessons of the course, read from their notebooks: cards, cells, and the half-days they make."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec

from ppwork.errors import PlanError

PATTERN = "[0-9][0-9]-*.ipynb"
HEADING = re.compile(r"^#+ Exercise: (.+)", re.MULTILINE)
"""Title of an exercise."""
ATTEMPT = re.compile(r'pp\.check\(\s*"(\d\d\.\d+)"|^%%ranks .*--check (\d\d\.\d+)', re.MULTILINE)
"""What a cell says that tries an exercise: of a function, or of a program of ranks."""
NEEDED = re.compile(r"\blessons? (\d\d[^;.]*)")
FROM_TO = re.compile(r"(\d\d)(?: to (\d\d))?")


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """Origin of the outputs of a lesson; `ppwork nb refresh` writes it down."""

    ppwork: str
    torch: str
    python: str
    backend: str
    device: str

    @property
    def text(self) -> str:
        """The origin in one line, for the foot of a slide."""
        versions = f"ppwork {self.ppwork} · torch {self.torch} · Python {self.python}"
        backend = self.backend.replace("copies", "one process")
        return f"{versions} · {backend} on {self.device}"


TEXT = "text"
"""Among cells that a slide shows: the place of its own text."""
Part = Literal["source", "output", "printed", "picture", "options", "both"]
"""``output`` is ``printed`` and ``picture`` together; ``options`` are a question's, without its words."""


class Excerpt(msgspec.Struct, frozen=True, array_like=True):
    """What a slide takes of a cell."""

    cell: str
    part: Part
    lines: tuple[tuple[int, int], ...] = ()
    """Kept, first and last from 1: of the source and of what was printed. Of a picture that is taken alone it
    is bands, in percent of the height from the top. Empty: everything."""


class Statement(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One slide, as a lesson declares it."""

    title: str
    """A statement, as a sentence."""
    show: tuple[str, ...] = ()
    """Ids of cells; each may name its own part and lines: ``send source 3-5 9-12``. ``text`` is no cell."""
    part: Part = "both"
    """Of a cell that names none."""
    lines: tuple[int, int] | None = None
    """First and last line of a source, from 1, where a cell names none; ``None``: all of it."""
    text: str = ""
    """Markdown in place of cells, or above them, or where ``show`` says ``text``."""
    caption: str | None = None
    """Below the pictures, in place of their own; empty: none."""
    note: str = ""
    """Markdown, for the speaker."""

    @property
    def shown(self) -> tuple[Excerpt, ...]:
        """What the slide takes of each cell.

        Raises:
            PlanError: An entry of ``show`` names no part, or lines that cannot be.
        """
        return tuple(self._excerpt(entry) for entry in self.show)

    def _excerpt(self, entry: str) -> Excerpt:
        cell, *rest = entry.split()
        lines = (self.lines,) if self.lines else ()
        if not rest:
            return Excerpt(cell, self.part, lines)
        try:
            spans = [tuple(map(int, span.split("-"))) for span in rest[1:]]
            return msgspec.convert((cell, rest[0], spans), Excerpt, strict=False)
        except ValueError as error:
            raise PlanError(
                f"The slide shows {entry!r}.", check_first="a cell, its part, and lines: send source 3-5 9-12"
            ) from error


Place = Literal["source", "encode", "envelope", "leader", "mesh", "result", "decode", "screen"]
"""On the way of a chunk, in this order."""


class Task(msgspec.Struct, frozen=True):
    """What an exercise asks for, in the words of a slide: Markdown."""

    do: str
    """A command."""
    done: str
    """What one then sees: ``rank 1 prints 6``."""
    answer: str = ""
    """What the speaker says when the time is up."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """A lesson's metadata, which are its card as well."""

    lesson: int
    question: str
    minutes: int
    """Reading and running."""
    exercise_minutes: int = 0
    ranks: int
    runs_on: tuple[str, ...]
    goals: tuple[str, ...] = ()
    needs: str = ""
    expect: tuple[str, ...] = ()
    """Usual mistakes of learners."""
    card_step: str = ""
    so_far: str = ""
    """What is known before it, and what is missing: Markdown, for the slide that opens the lesson."""
    about: tuple[Place, ...] = ()
    """Places on a chunk's way that it is about, for the same slide."""
    slides: tuple[Statement, ...] = ()
    tasks: dict[str, Task] = {}
    """By the exercise's number, for the slide that ends the lesson."""
    ran: Ran | None = None
    """``None``: never refreshed since this is written down."""

    @property
    def number(self) -> str:
        """The lesson's number as everybody writes it: two digits."""
        return f"{self.lesson:02d}"

    @property
    def needs_lessons(self) -> tuple[int, ...]:
        """Numbers of the lessons that ``needs`` names; what it has in brackets does not count."""
        named = " ".join(NEEDED.findall(re.sub(r"\([^)]*\)", "", self.needs)))
        ends = ((int(first), int(last or first)) for first, last in FROM_TO.findall(named))
        return tuple(sorted({number for first, last in ends for number in range(first, last + 1)}))


@dataclass(frozen=True)
class Exercise:
    """Something that a lesson's learners do by themselves."""

    number: str
    title: str
    task: Task
    on_ranks: bool
    """Its answer is a program of ranks, and not a function."""


@dataclass(frozen=True)
class Lesson:
    """One lesson, read from its notebook."""

    file: str
    card: Card
    cells: Sequence[Any]
    """As nbformat reads them: sources and outputs are whole strings."""

    @cached_property
    def exercises(self) -> tuple[Exercise, ...]:
        """The exercises, in the order in which they stand; the title is that of the heading above."""
        found: dict[str, Exercise] = {}
        title = ""
        for cell in self.cells:
            if cell["cell_type"] == "markdown":
                title = (HEADING.findall(cell["source"]) or [title])[-1]
            elif match := ATTEMPT.search(cell["source"]):
                number = match[1] or match[2]
                task = self.card.tasks.get(number, Task("", ""))
                found.setdefault(number, Exercise(number, title, task, on_ranks=match[1] is None))
        return tuple(found.values())


@dataclass(frozen=True)
class HalfDay:
    """Some lessons that are taught in one go."""

    name: str
    """Of its deck's file."""
    title: str
    day: int
    """From 1."""
    numbers: range
    starts: int
    """Minutes since midnight; later, if the morning leaves no time for lunch."""


HALF_DAYS = (
    HalfDay("day-1-morning", "Day 1, morning", 1, range(4), 9 * 60),
    HalfDay("day-1-afternoon", "Day 1, afternoon", 1, range(4, 8), 13 * 60 + 30),
    HalfDay("day-2-morning", "Day 2, morning", 2, range(8, 12), 9 * 60),
    HalfDay("day-2-afternoon", "Day 2, afternoon", 2, range(12, 17), 13 * 60 + 30),
)


def lessons_in(folder: Path) -> list[Lesson]:
    """Return the lessons of a folder, in their order.

    Raises:
        PlanError: There is none, or one of them is no notebook or has no card in its metadata.
    """
    lessons = sorted((_read(path) for path in folder.glob(PATTERN)), key=lambda lesson: lesson.card.lesson)
    if not lessons:
        raise PlanError(
            f"There is no lesson in {folder}.", check_first="--lessons, or the repository's folder"
        )
    return lessons


def by_half_day(lessons: Sequence[Lesson]) -> dict[HalfDay, list[Lesson]]:
    """Return the lessons of each half-day that has any."""
    members = {half: [each for each in lessons if each.card.lesson in half.numbers] for half in HALF_DAYS}
    return {half: own for half, own in members.items() if own}


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
