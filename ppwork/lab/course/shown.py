"""What a slide shows of a code cell, as HTML: its source, and its outputs as they were last executed."""

from __future__ import annotations

import base64
import html
import io
import re
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from typing import Any, ClassVar

from PIL import Image
from pygments.formatters import HtmlFormatter
from pygments.lexer import inherit
from pygments.lexers import PythonLexer
from pygments.token import Comment

from ppwork.errors import PlanError
from ppwork.lab.course.text import inline_html

PLAIN_TAGS = frozenset(
    ("b", "br", "code", "div", "em", "figcaption", "figure", "h1", "h2", "h3", "h4", "i", "img", "li", "ol",
     "p", "pre", "span", "strong", "sub", "sup", "table", "tbody", "td", "th", "thead", "tr", "ul", "wbr")
)  # fmt: skip
PLAIN_ATTRIBUTES = frozenset({"alt", "class", "colspan", "rowspan", "scope", "src", "style"})
IMAGE = "data:image/"
SOURCE, PRINTED, PICTURE, WORDS = "source", "printed", "picture", "words"
OPTION_COLUMNS = 36
"""What a question's options need at most beside a text; a longer one takes two lines."""
MAX_ROWS, MAX_COLUMNS = 22, 116
"""What was printed is cut there; a longer line counts for as many rows as it will take."""
_FIGURE = re.compile(r"(<figure>.*?</figure>)", re.DOTALL)
_PRE = re.compile(r"\s*<pre>(.*?)</pre>\s*", re.DOTALL)
_OPTION = re.compile(r"^ {2}([a-h]) {2}(.+)$", re.MULTILINE)
_SAYS = re.compile(r"\bsays? ([a-h])\b")
"""Who judged: the run says, sums say."""
_TEXT = re.compile(r'<pre class="printed">(.*)</pre>', re.DOTALL)
_IMAGE = re.compile(r'(data:image/)\w+;base64,([^"]+)')
_CAPTION = re.compile(r"<figcaption>.*?</figcaption>", re.DOTALL)
_PICTOGRAPH = re.compile("[\U0001f000-\U0001faff\ufe0f]")
"""gloo ends a message with one; the fonts of a deck have none."""
_SENTENCE = re.compile(r": (?=[A-Z][a-z]* )")
"""Between an option and the reply to it, which is a sentence."""
_REPLY = re.compile(r"^([a-h]) {2}(.+)$", re.MULTILINE)


@dataclass(frozen=True)
class ShownBlock:
    """One thing that a cell shows."""

    kind: str
    html: str
    rows: int = 0
    columns: int = 0
    """Of text with lines of its own, and of options; else nothing."""
    note: str = ""
    """HTML for the speaker."""


class CellLexer(PythonLexer):  # type: ignore[misc]
    """Python with the lines of a notebook that are none: ``%%ranks 2``, ``!torchrun``."""

    name = "cell"
    aliases: ClassVar = ["cell"]
    tokens: ClassVar = {"root": [(r"^[%!].*$", Comment.Special), inherit]}


def source(text: str) -> ShownBlock:
    """Return the code of a cell, in colours."""
    tokens = CellLexer(stripnl=False, ensurenl=False).get_tokens(text)
    pieces: list[str] = []
    HtmlFormatter(nowrap=True).format(tokens, _Pieces(pieces))
    coloured = "".join(pieces).rstrip("\n")
    lines = text.splitlines()
    return ShownBlock(
        SOURCE, f"<pre><code>{coloured}</code></pre>", len(lines), max(map(len, lines), default=0)
    )


def excerpt_of(text: str, spans: Sequence[tuple[int, int]]) -> str:
    """Return these lines of a text without their common indent; a sign says where some are left out."""
    lines = text.splitlines()
    kept: list[str] = []
    gaps: list[int] = []
    before = 0
    for first, last in spans or [(1, len(lines))]:
        if before and first > before + 1:
            gaps.append(len(kept))
        kept += lines[first - 1 : last]
        before = last
    shown = textwrap.dedent("\n".join(kept)).split("\n")
    for place in reversed(gaps):
        shown.insert(place, "\N{HORIZONTAL ELLIPSIS}")
    return "\n".join(shown).strip("\n")


def lines_of(blocks: Sequence[ShownBlock], spans: Sequence[tuple[int, int]]) -> ShownBlock:
    """Return these lines of what a cell has printed, counted through all of its outputs.

    Raises:
        PlanError: There are fewer lines.
    """
    printed = (_TEXT.fullmatch(block.html) for block in blocks)
    text = "\n".join(html.unescape(found[1]) for found in printed if found)
    if (length := len(text.splitlines())) < max(last for _, last in spans):
        raise PlanError(f"It has printed {length} lines.", check_first="the lines that the slide takes")
    return _printed(excerpt_of(text, spans))


def bands_of(block: ShownBlock, spans: Sequence[tuple[int, int]]) -> ShownBlock:
    """Return a picture with these bands of it only, in percent of its height."""
    kept = _IMAGE.sub(lambda found: f"{found[1]}png;base64,{_bands(found[2], spans)}", block.html)
    return replace(block, html=kept)


def captioned(block: ShownBlock, caption: str | None) -> ShownBlock:
    """Return a picture with another sentence below it; ``None`` leaves its own, and an empty one has none."""
    if caption is None:
        return block
    below = f"<figcaption>{inline_html(caption)}</figcaption>" if caption else ""
    return replace(block, html=_CAPTION.sub(lambda _: below, block.html))


def _bands(image: str, spans: Sequence[tuple[int, int]]) -> str:
    whole = Image.open(io.BytesIO(base64.b64decode(image)))
    heights = [(whole.height * top // 100, whole.height * bottom // 100) for top, bottom in spans]
    made = whole.crop((0, 0, whole.width, sum(bottom - top for top, bottom in heights)))
    place = 0
    for top, bottom in heights:
        made.paste(whole.crop((0, top, whole.width, bottom)), (0, place))
        place += bottom - top
    file = io.BytesIO()
    made.save(file, format="PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


class _Pieces:
    """A file of the formatter's that keeps what it is given."""

    def __init__(self, pieces: list[str]) -> None:
        self.write = pieces.append


def outputs(cell: Any) -> Iterator[ShownBlock]:  # noqa: ANN401  an untyped library's node
    """Yield what a cell has shown: text, pictures, a question with its options, an answer.

    Raises:
        PlanError: It was never executed, or an output would run or load something.
    """
    if cell["execution_count"] is None:
        raise PlanError("The cell was never executed.", check_first="`ppwork nb refresh` with the lesson")
    for output in cell["outputs"]:
        data = output.get("data", {})
        plain = data.get("text/plain", "")
        if "<details>" in data.get("text/html", "") and _SAYS.search(plain.partition("\n")[0]):
            yield _answer(plain)
        elif "lesson.predict(" in cell["source"] and _OPTION.search(plain):
            yield _question(plain)
        elif "text/html" in data:
            yield from _divided(data["text/html"])
        elif text := printed_text(output):
            yield _printed(text)


def printed_text(output: Any) -> str:  # noqa: ANN401
    """Return the text of an output; a widget has none without a kernel, and stderr is for who runs it."""
    if output["output_type"] == "stream":
        return _PICTOGRAPH.sub("", output["text"]) if output["name"] == "stdout" else ""
    if output["output_type"] == "error":
        return f"{output['ename']}: {output['evalue']}"
    return str(output["data"].get("text/plain", ""))


def refuse_more_than_plain(text: str) -> None:
    """Refuse HTML that is more than text, tables and pictures: a deck runs and loads nothing.

    Raises:
        PlanError: It has another tag or attribute, or a picture from elsewhere.
    """
    _Plain().feed(text)


class _Plain(HTMLParser):
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        is_kept = tag in PLAIN_TAGS and values.keys() <= PLAIN_ATTRIBUTES
        if not is_kept or not (values.get("src") or IMAGE).startswith(IMAGE):
            shown = " ".join([tag, *values])
            raise PlanError(f"An output has <{shown}> in it.", check_first="a picture or a table instead")


def _divided(text: str) -> Iterator[ShownBlock]:
    """Divide an output into its pictures and what stands between them."""
    refuse_more_than_plain(text)
    for piece in _FIGURE.split(text):
        if piece.startswith("<figure>"):
            yield ShownBlock(PICTURE, f'<div class="output">{piece}</div>')
        elif only := _PRE.fullmatch(piece):
            yield _printed(html.unescape(only[1]))
        elif piece.strip():
            yield ShownBlock(WORDS, f'<div class="output">{piece}</div>')


def _printed(text: str) -> ShownBlock:
    lines = text.rstrip().splitlines()
    kept: list[str] = []
    rows = 0
    for line in lines:
        rows += max(1, -(-len(line) // MAX_COLUMNS))
        if rows > MAX_ROWS:
            kept.append("\N{HORIZONTAL ELLIPSIS}")
            break
        kept.append(line)
    columns = max(map(len, kept), default=0)
    return ShownBlock(
        PRINTED,
        f'<pre class="printed">{html.escape(chr(10).join(kept))}</pre>',
        min(rows, MAX_ROWS + 1),
        min(columns, MAX_COLUMNS),
    )


def _question(plain: str) -> ShownBlock:
    options = _OPTION.findall(plain)
    rows = "".join(
        f"<tr><td><strong>{letter}</strong></td><td>{inline_html(text)}</td></tr>" for letter, text in options
    )
    columns = min(max(len(text) for _, text in options) + 3, OPTION_COLUMNS)
    text = inline_html(plain.partition("\n  a  ")[0].replace("\n", " "))
    asked = f'<p class="question">{text}</p><table class="options">{rows}</table>'
    return ShownBlock(WORDS, asked, columns=columns)


def _answer(plain: str) -> ShownBlock:
    """Show the reply to the right option; those to the others are the speaker's."""
    first, _, rest = plain.partition("\n")
    said = _SAYS.search(first)
    replies = {letter: inline_html(text) for letter, text in _REPLY.findall(rest)}
    right = said[1] if said else ""
    said_why = replies.pop(right, "")
    option, _, reply = _SENTENCE.sub("\n", said_why, count=1).partition("\n")
    if not reply:  # it begins with the name of a call, which has no capital letter
        option, _, reply = said_why.rpartition(": ")
    shown = f'<p class="answer"><strong>{right}&nbsp; {option}</strong><br>{reply}</p>'
    others = "".join(f"<li><strong>{letter}</strong> {text}</li>" for letter, text in replies.items())
    return ShownBlock(WORDS, shown, note=f"<ul>{others}</ul>" if others else "")
