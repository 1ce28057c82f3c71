"""Slides from an executed lesson: the cells that are marked, as parts that come one after another.

A lesson that declares its slides has them from ``statements``; marks are for those that do not yet.
"""

from __future__ import annotations

import base64
import io
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from PIL import Image

from ppwork.errors import PlanError
from ppwork.lab.course.lessons import Lesson
from ppwork.lab.course.shown import outputs
from ppwork.lab.course.shown import source as shown_source
from ppwork.lab.course.text import divided, html_of, last_section

MARKS = ("slide", "fragment")
SOURCE_LINES = 8
"""A longer source is not shown."""
WIDTH_PX, HEIGHT_PX, CAPTION_PX = 1180, 540, 60
"""Of a page, for what is below its heading, and of a sentence below a picture."""
PX_PER_CHARACTER = 38 / 85
"""Height of a line of text, by the characters in it."""
ENOUGH = 0.82
"""A picture has to get this part of the height that it would have alone."""
TALL = 2.1
"""A picture that is not so many times as wide as it is high has its sentence beside it, not below."""
_TAG = re.compile(r"<[^>]*>")
_PICTURE = re.compile(r'<img [^>]*src="data:image/\w+;base64,([^"]+)"')


@dataclass(frozen=True)
class SlidePart:
    """Part of a slide: one cell's."""

    html: str
    comes_later: bool = False
    """After a key press."""

    @cached_property
    def ratio(self) -> float | None:
        """Width of its picture by height; ``None`` without one."""
        if (picture := _PICTURE.search(self.html)) is None:
            return None
        width, height = Image.open(io.BytesIO(base64.b64decode(picture[1]))).size
        return float(width / height)

    @property
    def characters(self) -> int:
        """Length of its text."""
        return len(_TAG.sub("", self.html))


@dataclass
class Slide:
    """One slide."""

    section: str
    """HTML of the lesson's section, where the slide has no such heading of its own; else empty."""
    parts: list[SlidePart] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    """HTML."""

    def has_room_for(self, ratio: float) -> bool:
        """Whether a picture of this shape, below the parts so far, would still be legible."""
        if any(part.ratio for part in self.parts):
            return False
        text = PX_PER_CHARACTER * sum(part.characters for part in self.parts)
        caption = CAPTION_PX if ratio >= TALL else 0
        return HEIGHT_PX - caption - text >= ENOUGH * min(WIDTH_PX / ratio, HEIGHT_PX)


def slides_of(lesson: Lesson) -> list[Slide]:
    """Return the slides that are marked in a lesson.

    A picture that would be too small below what its slide already has begins a slide of its own, where the
    speaker keeps the text.

    Raises:
        PlanError: None is marked, the first mark is a fragment, a mark is unknown, or a cell cannot be shown.
    """
    slides: list[Slide] = []
    section = ""
    for number, cell in enumerate(lesson.cells):
        is_text = cell["cell_type"] == "markdown"
        if is_text:
            section = last_section(cell["source"]) or section
        mark = cell["metadata"].get("slideshow", {}).get("slide_type")
        if mark is None:
            continue
        if mark not in MARKS or (mark == "fragment" and not slides):
            raise PlanError(
                f"Cell {number} of {lesson.file} is marked {mark!r}.",
                check_first=f"one of {', '.join(MARKS)}, and first of all a slide",
            )
        try:
            shown, notes, level = _text(cell) if is_text else _code(cell)
        except PlanError as error:
            raise PlanError(
                f"{lesson.file}, cell {number}: {error.what}", check_first=error.check_first
            ) from error
        part = SlidePart(shown, comes_later=mark == "fragment")
        if mark == "slide":
            slides.append(Slide(section="" if level is not None and level <= 2 else section))
        elif part.ratio and not slides[-1].has_room_for(part.ratio):
            slides.append(Slide(section, notes=[earlier.html for earlier in slides[-1].parts]))
            part = SlidePart(shown)
        slides[-1].parts.append(part)
        slides[-1].notes += [note for note in notes if note]
    if not slides:
        raise PlanError(
            f"No cell of {lesson.file} is marked as a slide.",
            check_first='cell metadata: "slideshow": {"slide_type": "slide"}',
        )
    return slides


Shown = tuple[str, list[str], int | None]


def _text(cell: Any) -> Shown:  # noqa: ANN401  an untyped library's node
    text = divided(cell["source"])
    return text.shown, [_notes(cell), text.notes], text.level


def _code(cell: Any) -> Shown:  # noqa: ANN401
    """Return outputs and, if there is room for it, the source; beside a picture there is none."""
    blocks = list(outputs(cell))
    shown = "".join(block.html for block in blocks)
    if "<img " not in shown and len(cell["source"].splitlines()) <= SOURCE_LINES:
        shown = f"{shown_source(cell['source']).html}{shown}"
    if not shown:
        raise PlanError("The cell has no output, and too long a source.", check_first="mark another cell")
    return shown, [_notes(cell), *(block.note for block in blocks)], None


def _notes(cell: Any) -> str:  # noqa: ANN401
    """Return the speaker's notes of the cell's metadata."""
    return html_of(cell["metadata"].get("ppwork", {}).get("notes", ""))
