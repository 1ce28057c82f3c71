"""Markdown as a slide shows it: formulas as MathML, strips drawn."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Any

import mistune
from mistune.core import BlockState

from ppwork.errors import PlanError
from ppwork.lab.course.strip import strip

PLUGINS = ["table", "math"]


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

    def block_code(self, code: str, info: str | None = None) -> str:
        return strip(code) if info == "strip" else super().block_code(code, info)

    def inline_math(self, text: str) -> str:
        return _mathml(text, "inline")

    def block_math(self, text: str) -> str:
        return _mathml(text, "block")


def html_of(text: str) -> str:
    """Return Markdown as HTML.

    Raises:
        PlanError: A formula or a strip cannot be read, or there is a picture that is not in the notebook.
    """
    return _rendered(_parsed(text))


def inline_html(text: str) -> str:
    """Return one line of Markdown as HTML without a paragraph around it."""
    return _rendered(child for block in _parsed(text) for child in block.get("children", ()))


def without_headings(text: str) -> str:
    """Return Markdown without its headings: the slide's title stands in their place."""
    return "\n".join(line for line in text.splitlines() if not line.startswith("#"))


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
