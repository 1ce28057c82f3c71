"""The slides that a lesson declares: a statement for a title, and one thing to look at."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from ppwork.errors import PlanError
from ppwork.lab.course.lessons import TEXT, Excerpt, Lesson, Statement
from ppwork.lab.course.shown import (
    PICTURE,
    PRINTED,
    WORDS,
    ShownBlock,
    bands_of,
    captioned,
    excerpt_of,
    lines_of,
    outputs,
    source,
)
from ppwork.lab.course.slides import Slide, SlidePart
from ppwork.lab.course.text import html_of, inline_html, without_headings

ROWS_BESIDE_PICTURE = 7
"""With more text than that a picture would be too small below it, and has a slide of its own."""
COLUMNS = 104
"""Of two texts side by side."""
PROGRAM = re.compile(r"^```python\n(.*?)\n```$", re.DOTALL | re.MULTILINE)
QUESTION, TAG = re.compile(r'<p class="question">(.*?)</p>'), re.compile(r"<[^>]*>")


def statements(lesson: Lesson) -> list[Slide]:
    """Return the slides of a lesson's metadata, in their order.

    Raises:
        PlanError: None is declared; a slide shows nothing, or a cell that is not there, was never executed or
            cannot be shown.
    """
    if not lesson.card.slides:
        raise PlanError(
            f"{lesson.file} declares no slide.", check_first="`ppwork.slides` in the notebook's metadata"
        )
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
    kind = "facts" if statement.show else "words"
    words = list(_words(statement.text, kind))
    blocks = [] if TEXT in statement.show else words
    for excerpt in statement.shown:
        if excerpt.cell == TEXT:
            blocks += words
        elif excerpt.cell in cells:
            blocks += [_once(block, statement.title) for block in _blocks(cells[excerpt.cell], excerpt)]
        else:
            raise PlanError(
                f"There is no cell {excerpt.cell!r}.", check_first="the ids of the lesson's cells"
            )
    if not blocks:
        raise PlanError("It shows nothing.", check_first="`show`, `part` and `text` of the slide")
    title = SlidePart(f'<h2 class="statement">{inline_html(statement.title)}</h2>')
    notes = [note for note in (html_of(statement.note), *(block.note for block in blocks)) if note]
    texts = [block for block in blocks if block.kind != PICTURE]
    pictures = [captioned(block, statement.caption) for block in blocks if block.kind == PICTURE]
    together = pictures[:1] if _rows(texts) <= ROWS_BESIDE_PICTURE else []
    if texts or together:
        parts = [*_texts(texts), *(SlidePart(block.html) for block in together)]
        yield Slide([title, *parts], notes)
    for picture in pictures[len(together) :]:
        yield Slide([title, SlidePart(picture.html)], notes)


def _words(text: str, kind: str) -> Iterator[ShownBlock]:
    """Yield a slide's own text; a program in it looks as those of cells do."""
    for number, piece in enumerate(PROGRAM.split(text)):
        if number % 2:
            yield source(piece)
        elif piece.strip():
            yield ShownBlock(WORDS, f'<div class="{kind}">{html_of(piece)}</div>')


def _blocks(cell: Any, excerpt: Excerpt) -> Iterator[ShownBlock]:  # noqa: ANN401  an untyped library's node
    if cell["cell_type"] == "markdown":
        yield ShownBlock(WORDS, f'<div class="words">{html_of(without_headings(cell["source"]))}</div>')
        return
    if excerpt.part in ("source", "both"):
        yield source(excerpt_of(cell["source"], excerpt.lines))
    if excerpt.part != "source":
        left_out = {"printed": PICTURE, "picture": PRINTED}.get(excerpt.part)
        blocks = [block for block in outputs(cell) if block.kind != left_out]
        if excerpt.part == "options":
            yield from (replace(block, html=QUESTION.sub("", block.html)) for block in blocks)
        elif excerpt.lines and excerpt.part == "printed":
            yield lines_of(blocks, excerpt.lines)
        elif excerpt.lines and excerpt.part == "picture":
            yield from (bands_of(block, excerpt.lines) for block in blocks)
        else:
            yield from blocks


def _once(block: ShownBlock, title: str) -> ShownBlock:
    """Take the text of a question away where the slide's title is the same."""
    found = QUESTION.match(block.html)
    if found and html.unescape(TAG.sub("", found[1])).strip() == title.replace("`", "").strip():
        return replace(block, html=block.html[found.end() :])
    return block


def _rows(blocks: Sequence[ShownBlock]) -> int:
    """Return the height of texts in lines of code, each with a margin; words are larger."""
    return sum((block.rows or 4) + 1 for block in blocks)


def _texts(blocks: Sequence[ShownBlock]) -> Iterator[SlidePart]:
    """Put two texts, or a text and options, side by side where both have room; else one below the other."""
    rest = list(blocks)
    while rest:
        left, *after = rest
        right = after[0] if after else left
        if after and left.columns and right.columns and left.columns + right.columns <= COLUMNS:
            columns = "".join(
                f'<div style="flex: {max(20, block.columns)} 1 0">{block.html}</div>'
                for block in (left, right)
            )
            yield SlidePart(f'<div class="beside">{columns}</div>')
            rest = after[1:]
        else:
            yield SlidePart(left.html)
            rest = after
