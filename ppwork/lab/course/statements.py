"""The slides that a lesson declares: a statement for a title, and one thing to look at."""

from __future__ import annotations

import html
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ppwork.errors import PlanError
from ppwork.lab.course.lessons import Lesson, Statement
from ppwork.lab.course.shown import PICTURE, PRINTED, WORDS, Block, outputs, source
from ppwork.lab.course.slides import Part, Slide
from ppwork.lab.course.text import html_of, inline_html, without_headings

ROWS_BESIDE_PICTURE = 7
"""With more text than that a picture would be too small below it, and has a slide of its own."""
COLUMNS = 104
"""Of two texts side by side."""
QUESTION, TAG = re.compile(r'<p class="question">(.*?)</p>'), re.compile(r"<[^>]*>")


def statements(lesson: Lesson) -> list[Slide]:
    """Return the slides of a lesson's metadata, in their order.

    Raises:
        PlanError: A slide shows nothing, or a cell that is not there, was never executed or cannot be shown.
    """
    cells = {cell.get("id"): cell for cell in lesson.cells}
    slides: list[Slide] = []
    for number, statement in enumerate(lesson.card.slides, start=1):
        try:
            slides += _slides(statement, cells)
        except PlanError as error:
            raise PlanError(
                f"{lesson.file}, slide {number} ({statement.title}): {error.what}",
                check_first=error.check_first,
            ) from error
    return slides


def _slides(statement: Statement, cells: dict[str, Any]) -> Iterator[Slide]:
    blocks = [Block(WORDS, f'<div class="words">{html_of(statement.text)}</div>')] if statement.text else []
    for name in statement.show:
        if name not in cells:
            raise PlanError(f"There is no cell {name!r}.", check_first="the ids of the lesson's cells")
        blocks += [_once(block, statement.title) for block in _blocks(cells[name], statement)]
    if not blocks:
        raise PlanError("It shows nothing.", check_first="`show`, `part` and `text` of the slide")
    title = Part(f'<h2 class="statement">{inline_html(statement.title)}</h2>')
    notes = [note for note in (html_of(statement.note), *(block.note for block in blocks)) if note]
    texts = [block for block in blocks if block.kind != PICTURE]
    pictures = [block for block in blocks if block.kind == PICTURE]
    together = pictures[:1] if _rows(texts) <= ROWS_BESIDE_PICTURE else []
    if texts or together:
        parts = [*_texts(texts), *(Part(block.html) for block in together)]
        yield Slide("", [title, *parts], notes)
    for picture in pictures[len(together) :]:
        yield Slide("", [title, Part(picture.html)], notes)


def _blocks(cell: Any, statement: Statement) -> Iterator[Block]:  # noqa: ANN401  an untyped library's node
    if cell["cell_type"] == "markdown":
        yield Block(WORDS, f'<div class="words">{html_of(without_headings(cell["source"]))}</div>')
        return
    if statement.part in ("source", "both"):
        lines = cell["source"].splitlines()
        first, last = statement.lines or (1, len(lines))
        yield source(textwrap.dedent("\n".join(lines[first - 1 : last])).strip("\n"))
    if statement.part in ("output", "both"):
        yield from outputs(cell)
    if statement.part == "picture":
        yield from (block for block in outputs(cell) if block.kind != PRINTED)


def _once(block: Block, title: str) -> Block:
    """Take the text of a question away where the slide's title is the same."""
    found = QUESTION.match(block.html)
    if found and html.unescape(TAG.sub("", found[1])).strip() == title.replace("`", "").strip():
        return replace(block, html=block.html[found.end() :])
    return block


def _rows(blocks: Sequence[Block]) -> int:
    """Return the height of texts in lines of code, each with a margin; words are larger."""
    return sum((block.rows or 4) + 1 for block in blocks)


def _texts(blocks: Sequence[Block]) -> Iterator[Part]:
    """Put two texts side by side where both have room there; else one below the other."""
    if len(blocks) == 2 and all(block.columns for block in blocks):
        left, right = blocks
        if left.columns + right.columns <= COLUMNS:
            columns = "".join(
                f'<div style="flex: {max(20, block.columns)} 1 0">{block.html}</div>' for block in blocks
            )
            yield Part(f'<div class="beside">{columns}</div>')
            return
    for block in blocks:
        yield Part(block.html)
