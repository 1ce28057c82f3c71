"""Tables of texts, in four forms: for a terminal, at fixed width, as Markdown, and as HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppwork.errors import visible

if TYPE_CHECKING:
    import rich.table

TOP_LEFT = "text-align:left; vertical-align:top"
"""For cells of several lines."""
APART = "text-align:left; padding:0 1.5em 0 0"
"""For the inside of a widget, where tables have no distances of their own."""
BOLD = "bold"
"""In place of a colour."""
NUMBER = re.compile(r"[-+]?\d[\d.,]*( ?(ms|s|%|x))?[ *]?|-|never|none|mean|")
"""Columns that have nothing else are set flush right."""

Cell = str | tuple[str, str]
"""A text, or a text and its colour: a name that terminals and CSS share, or ``BOLD``."""


@dataclass(frozen=True)
class Table:
    r"""Rows of texts under one row of heads; ``print`` writes it at fixed width, a notebook shows it as HTML.

    >>> print(Table(["rank", "ms"], [["0", "1.25"], ["1", "10.50"]]))
    rank     ms
       0   1.25
       1  10.50
    >>> print(Table(["a|b"], [["c"]]).markdown(), end="")
    | a\|b |
    |---|
    | c |
    """

    head: Sequence[str]
    """A text for each column; empty: the first cell of each row says what the row is."""
    rows: Sequence[Sequence[Cell]]
    above: str = ""
    """A line over the table, such as its unit."""
    below: str = ""
    """A line under it, such as what a mark means."""

    def __str__(self) -> str:
        texts = [*([self.head] if self.head else []), *([_text(cell) for cell in row] for row in self.rows)]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        flush_right = self._flush_right()
        lines = [
            "  ".join(
                text.rjust(width) if right else text.ljust(width)
                for text, width, right in zip(line, widths, flush_right, strict=True)
            ).rstrip()
            for line in texts
        ]
        return visible("\n".join([*filter(None, [self.above]), *lines, *filter(None, [self.below])]))

    __repr__ = __str__

    def __rich__(self) -> rich.table.Table:
        from rich.table import Table as Lines
        from rich.text import Text

        lines = Lines(show_header=bool(self.head), box=None, pad_edge=False)
        around = (Text(visible(text)) if text else None for text in (self.above, self.below))
        lines.title, lines.caption = around
        lines.title_justify = lines.caption_justify = "left"
        heads = self.head or ("",) * max(map(len, self.rows), default=0)
        for number, (name, right) in enumerate(zip(heads, self._flush_right(), strict=True)):
            style = BOLD if not self.head and number == 0 else ""
            lines.add_column(Text(name), justify="right" if right else "left", overflow="fold", style=style)
        for row in self.rows:
            lines.add_row(*(Text(_text(cell), "" if isinstance(cell, str) else cell[1]) for cell in row))
        return lines

    def markdown(self) -> str:
        """Return the table for a page, every row a line."""
        lines = [self.head, *([_text(cell) for cell in row] for row in self.rows)]
        cells = ([text.replace("|", "\\|").replace("\n", " ") for text in line] for line in lines)
        head, *rows = (f"| {' | '.join(line)} |\n" for line in cells)
        return "".join([head, "|", "---|" * len(self.head), "\n", *rows])

    def html(self, style: str = TOP_LEFT) -> str:
        """Return the table for a notebook or a widget; ``style`` is CSS of every cell.

        >>> Table(["rank"], [["<0>"]]).html("")
        '<table><tr><th scope="col" style="">rank</th></tr><tr><td style="">&lt;0&gt;</td></tr></table>'
        """
        first = "td" if self.head else "row"
        lines = ["".join(_html(name, style, "col") for name in self.head)] if self.head else []
        lines += ["".join(_html(c, style, "td" if n else first) for n, c in enumerate(r)) for r in self.rows]
        return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"

    def _repr_html_(self) -> str:
        above, below = (f"<p>{html.escape(text)}</p>" if text else "" for text in (self.above, self.below))
        return above + self.html() + below

    def _flush_right(self) -> list[bool]:
        if not self.head:
            return [False] * max(map(len, self.rows), default=0)
        if not self.rows:
            return [False] * len(self.head)
        columns = zip(*self.rows, strict=True)
        return [all(NUMBER.fullmatch(_text(cell)) for cell in column) for column in columns]


def _html(cell: Cell, style: str, kind: str) -> str:
    """Return a cell as HTML: a ``td``, or the head of its ``row`` or ``col``."""
    text, colour = (cell, "") if isinstance(cell, str) else cell
    shade = "; font-weight:bold" if colour == BOLD else f"; color:{colour}" if colour else ""
    tag, scope = ("td", "") if kind == "td" else ("th", f' scope="{kind}"')
    return f'<{tag}{scope} style="{style}{shade}">{text_html(text)}</{tag}>'


def text_html(text: str) -> str:
    """Return a text as HTML, in which what stands between backticks is code; a single one stays as it is.

    >>> text_html("`a < b` or `")
    '<code>a &lt; b</code> or `'
    """
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text))


def _text(cell: Cell) -> str:
    return visible(cell if isinstance(cell, str) else cell[0])
