"""A deck: the slides of a half-day in one HTML file that asks for nothing outside itself.

reveal.js turns the pages (its files and licence are in ``deck_files/reveal``); look and fit are ours.
"""

from __future__ import annotations

import html
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ppwork.errors import PlanError
from ppwork.slide_text import html_of, inline_html
from ppwork.slides import TALL, slides_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ppwork.course import HalfDay, Lesson, Ran
    from ppwork.slides import Part, Slide

FILES = Path(__file__).parent / "deck_files"
STYLES = ("reveal/reset.css", "reveal/reveal.css", "deck.css")
SCRIPTS = (("reveal/reveal.js", ""), ("reveal/notes.js", ""), ("deck.js", ' type="module"'))
"""With the kind of script that each is; a module may wait."""
POLICY = (
    "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'; frame-src *"
)
"""What a browser lets the deck load: nothing. The frames are the speaker view's, of the deck itself."""
KEYS = (
    "Keys: space and arrows turn the pages, `s` opens this view, `f` fills the screen, `o` shows all slides, "
    "`?` lists the rest. To print, add `?print-pdf` to the address."
)


@dataclass(frozen=True)
class _Page:
    """One slide with what it says at its foot."""

    parts: str
    notes: str
    foot: str
    ran: str


def deck(half: HalfDay, lessons: Sequence[Lesson]) -> str:
    """Return the deck of a half-day as HTML.

    Raises:
        PlanError: A lesson has no slides, or does not say what its outputs come from.
    """
    pages = [_cover(half, lessons)]
    for lesson in lessons:
        foot = f"{lesson.card.number} · {inline_html(lesson.card.question)}"
        ran = html.escape(ran_of(lesson).text)
        pages += [_Page(_parts(slide), "".join(slide.notes), foot, ran) for slide in slides_of(lesson)]
    sections = [_section(page, number, len(pages)) for number, page in enumerate(pages, start=1)]
    styles = "\n".join(f"<style>{(FILES / name).read_text()}</style>" for name in STYLES)
    scripts = "\n".join(
        f"<script{kind}>{in_script((FILES / name).read_text())}</script>" for name, kind in SCRIPTS
    )
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            f"<!-- reveal.js:\n{(FILES / 'reveal/LICENSE').read_text()}-->",
            '<head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>ppwork: {html.escape(half.title)}</title>",
            f'{styles}</head>\n<body><div class="reveal"><div class="slides">',
            *sections,
            f"</div></div>\n{scripts}</body></html>\n",
        ]
    )


def ran_of(lesson: Lesson) -> Ran:
    """Return what the outputs of a lesson come from.

    Raises:
        PlanError: The notebook does not say.
    """
    if lesson.card.ran is None:
        raise PlanError(
            f"The lesson {lesson.file} does not say what its outputs come from.",
            check_first=f"`ppwork nb refresh` with {lesson.file} writes it down",
        )
    return lesson.card.ran


def in_script(text: str) -> str:
    r"""Return JavaScript that cannot end the element it is put into, and means the same.

    >>> in_script("a = '</script>'")
    "a = '<\\/script>'"
    """
    return text.replace("</script", "<\\/script").replace("<!--", "<\\!--")


def _cover(half: HalfDay, lessons: Sequence[Lesson]) -> _Page:
    minutes = sum(lesson.card.minutes for lesson in lessons)
    rows = "".join(
        f"<tr><td>{card.number}</td><td>{inline_html(card.question)}</td><td>{card.minutes} min</td></tr>"
        for card in (lesson.card for lesson in lessons)
    )
    shown = (
        f"<h1>{html.escape(half.title)}</h1>"
        "<p>Pipeline-parallel inference on torch.distributed: see it work, break it, measure it. "
        f"{len(lessons)} {'lesson' if len(lessons) == 1 else 'lessons'}, {minutes} minutes.</p>"
        f'<table class="lessons">{rows}</table>'
    )
    ran = html.escape("; ".join(sorted({ran_of(lesson).text for lesson in lessons})))
    notes = f"{html_of(KEYS)}<p>Every figure and number is from a run of: {ran}.</p>"
    return _Page(shown, notes, "ppwork", ran)


def _parts(slide: Slide) -> str:
    head = f'<p class="section">{slide.section}</p>' if slide.section else ""
    return head + "".join(map(_part, slide.parts))


def _part(part: Part) -> str:
    names = ["part", *["fragment"] * part.comes_later]
    if part.ratio:
        names += ["picture", *["tall"] * (part.ratio < TALL)]
    return f'<div class="{" ".join(names)}">{part.html}</div>'


def _section(page: _Page, number: int, total: int) -> str:
    foot = "".join(f"<span>{text}</span>" for text in (page.foot, page.ran, f"{number} / {total}"))
    return (
        f'<section><div class="page"><div class="body">{page.parts}</div><footer>{foot}</footer></div>'
        f'<aside class="notes">{page.notes}</aside></section>'
    )
