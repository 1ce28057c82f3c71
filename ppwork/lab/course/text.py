"""A lesson's Markdown as a slide shows it: little text, the rest as speaker notes, formulas as MathML."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import mistune
from mistune.core import BlockState

from ppwork.errors import PlanError

PLUGINS = ["table", "math"]
SHORT = ("table", "list", "block_math")
"""Blocks that a slide always shows."""


@dataclass(frozen=True)
class SlideText:
    """A Markdown cell, divided between slide and speaker."""

    shown: str
    """HTML."""
    notes: str
    """HTML; empty if the slide shows everything."""
    level: int | None
    """Of the most important heading that is shown; ``None`` without one."""


class _Html(mistune.HTMLRenderer):
    """Self-contained HTML: nothing in it asks for another file."""

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """A file beside the lesson is not beside the slide, so its link is plain text."""
        return super().link(text, url, title) if ":" in url else f'<span class="term">{text}</span>'

    def image(self, text: str, url: str, title: str | None = None) -> str:  # noqa: ARG002  the parent's names
        raise PlanError(
            f"A slide's Markdown has the picture {url}, which would stay outside the deck.",
            check_first="show it from a code cell: `pp.show(path, alt=...)`",
        )

    def inline_math(self, text: str) -> str:
        return _mathml(text, "inline")

    def block_math(self, text: str) -> str:
        return _mathml(text, "block")


def divided(text: str) -> SlideText:
    """Divide a Markdown cell.

    The slide gets tables, lists, display formulas, and the first paragraph after the last heading. Headings
    come with what stands below them; one of which the slide would show nothing else goes to the notes.

    Raises:
        PlanError: A formula cannot be read, or there is a picture that is not in the notebook.
    """
    blocks = [block for block in _parsed(text) if block["type"] != "blank_line"]
    heads = [i for i, block in enumerate(blocks) if block["type"] == "heading"]
    last = heads[-1] if heads else -1
    first = next((i for i, b in enumerate(blocks) if i > last and b["type"] == "paragraph"), None)
    chosen = {i for i, block in enumerate(blocks) if block["type"] in SHORT or i == first}
    chosen |= {i for i in heads if i == last or _reaches(blocks, i, chosen | {last})}
    levels = [blocks[i]["attrs"]["level"] for i in heads if i in chosen]
    return SlideText(
        shown=_rendered(block for i, block in enumerate(blocks) if i in chosen),
        notes=_rendered(block for i, block in enumerate(blocks) if i not in chosen),
        level=min(levels, default=None),
    )


def html_of(text: str) -> str:
    """Return Markdown as HTML, all of it; errors are those of ``divided``."""
    return _rendered(_parsed(text))


def inline_html(text: str) -> str:
    """Return one line of Markdown as HTML without a paragraph around it."""
    return _rendered(child for block in _parsed(text) for child in block.get("children", ()))


def without_headings(text: str) -> str:
    """Return Markdown without its headings: the slide's title stands in their place."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


def last_section(text: str) -> str | None:
    """Return the last ``##`` heading of a Markdown text as HTML, if it has one."""
    heads = [b for b in _parsed(text) if b["type"] == "heading" and b["attrs"]["level"] == 2]
    return _rendered(heads[-1]["children"]) if heads else None


def _reaches(blocks: list[dict[str, Any]], head: int, chosen: set[int]) -> bool:
    """Whether something that is shown stands below this heading, before one that is as important."""
    level = blocks[head]["attrs"]["level"]
    for i in range(head + 1, len(blocks)):
        if blocks[i]["type"] == "heading" and blocks[i]["attrs"]["level"] <= level:
            return False
        if i in chosen:
            return True
    return False


def _parsed(text: str) -> list[dict[str, Any]]:
    blocks = _parser()(text)
    assert isinstance(blocks, list)  # noqa: S101  for mypy: without a renderer there is no HTML yet
    return blocks


def _rendered(blocks: Iterable[dict[str, Any]]) -> str:
    renderer = _writer().renderer
    assert renderer is not None  # noqa: S101  for mypy: it was made with one
    return renderer.render_tokens(blocks, BlockState())


@functools.cache
def _parser() -> mistune.Markdown:
    return mistune.create_markdown(renderer=None, plugins=PLUGINS)


@functools.cache
def _writer() -> mistune.Markdown:
    return mistune.create_markdown(renderer=_Html(escape=True), plugins=PLUGINS)


def _mathml(text: str, display: str) -> str:
    from latex2mathml.converter import convert

    try:
        return str(convert(text, display=display))
    except Exception as error:  # the library has no common type for what it cannot read
        raise PlanError(
            f"The formula {text!r} cannot be read ({type(error).__name__}).",
            check_first=r"its LaTeX; a dollar sign that means money is written \$",
        ) from error
