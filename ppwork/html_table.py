"""A table as HTML, for a notebook: one row of heads, then text."""

from __future__ import annotations

import html
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

TOP_LEFT = "text-align:left; vertical-align:top"
"""For cells of several lines."""
APART = "text-align:left; padding:0 1.5em 0 0"
"""For the inside of a widget, where tables have no distances of their own."""


def html_table(heads: Iterable[str], rows: Iterable[Iterable[str | tuple[str, str]]], style: str) -> str:
    """Return a table as HTML.

    Args:
        heads: One for each column.
        rows: Their cells: a text, or a text and its colour.
        style: CSS of every cell.

    >>> html_table(["rank"], [["<0>"]], "")
    '<table><tr><th scope="col" style="">rank</th></tr><tr><td style="">&lt;0&gt;</td></tr></table>'
    """
    head = "".join(f'<th scope="col" style="{style}">{html.escape(name)}</th>' for name in heads)
    body = "".join("<tr>" + "".join(_cell(cell, style) for cell in row) + "</tr>" for row in rows)
    return f"<table><tr>{head}</tr>{body}</table>"


def _cell(cell: str | tuple[str, str], style: str) -> str:
    text, colour = (cell, "") if isinstance(cell, str) else cell
    shade = f"; color:{colour}" if colour else ""
    return f'<td style="{style}{shade}">{html.escape(text)}</td>'
