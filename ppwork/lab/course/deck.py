"""A deck: the slides of a half-day in one HTML file that asks for nothing outside itself.

reveal.js turns the pages (its files and licence are in ``deck_files/reveal``); look and fit are ours.
All text is in IBM Plex (``deck_files/plex``), which the deck brings with it: a slide that fits here fits on
every machine.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

from ppwork.errors import PlanError
from ppwork.lab.course.lessons import Exercise, HalfDay, Lesson, Place, Ran, by_half_day
from ppwork.lab.course.slides import TALL, SlidePart
from ppwork.lab.course.statements import statements
from ppwork.lab.course.text import html_of, inline_html
from ppwork.lab.course.timetable import Day, TimetableSlot, clock, two_days

FILES = Path(__file__).parent / "deck_files"
STYLES = ("reveal/reset.css", "reveal/reveal.css", "deck.css")
SCRIPTS = (("reveal/reveal.js", ""), ("reveal/notes.js", ""), ("deck.js", ' type="module"'))
"""With the kind of script that each is; a module may wait."""
FONTS = (
    ("IBM Plex Sans", 400, "normal", "IBMPlexSans-Regular-Latin1"),
    ("IBM Plex Sans", 400, "italic", "IBMPlexSans-Italic-Latin1"),
    ("IBM Plex Sans", 600, "normal", "IBMPlexSans-SemiBold-Latin1"),
    ("IBM Plex Mono", 400, "normal", "IBMPlexMono-Regular-Latin1"),
    ("IBM Plex Mono", 600, "normal", "IBMPlexMono-SemiBold-Latin1"),
)
"""Family, weight, style and file of each face that ``deck.css`` asks for.

The files are whole parts of IBM's packages, as their licence wants them under that name. A slide with signs
beyond Latin 1 needs one more part ("Greek", "Pi"), and the test of the decks says so.
"""
LATIN_1 = (
    "U+0020-007E, U+00A0-00FF, U+0131, U+0152-0153, U+02C6, U+02DA, U+02DC, U+2013-2014, U+2018-201A, "
    "U+201C-201E, U+2020-2022, U+2026, U+2030, U+2039-203A, U+2044, U+20AC, U+2122, U+2212, U+FB01-FB02"
)
"""The signs in these files."""
POLICY = (
    "default-src 'none'; img-src data:; font-src data:; style-src 'unsafe-inline'; frame-src *; "
    "base-uri 'none'; form-action 'none'; script-src"
)
"""A browser lets the deck load nothing, and run its own scripts only, whose hashes follow.

The frames are the speaker view's, of the deck itself: a page in a file has no origin that could be named.
"""
_MOST_OF_A_FOOT = 56
"""Letters of a question that stand in one line beside the origin and the number."""
CLOCK = (
    "The minutes are reckoned from words, programs and runs; INSTRUCTOR.md says what goes if time is short."
)
OPENING_NOTE = (
    "Let the room answer the question in a sentence. Boxes in colour are the places on a chunk's way that "
    "the lesson is about. The exercises come at the end of the lesson."
)
TURN_NOTE = (
    "Walk round: the check of an exercise says what is wrong, and who is done takes one for home. "
    "Say when you go on."
)
KEYS = (
    "Keys: space and arrows turn the pages, `s` opens this view, `f` fills the screen, `o` shows all slides, "
    "`?` lists the rest. To print, add `?print-pdf` to the address."
)


@dataclass(frozen=True)
class _Page:
    """One slide, its notes, and its foot."""

    parts: str
    notes: str
    foot: str
    ran: str


def deck(half: HalfDay, course: Sequence[Lesson]) -> str:
    """Return the deck of a half-day as HTML.

    Args:
        half: One that the course has lessons of.
        course: All lessons: what a half-day has time for depends on the rest of the day.

    Raises:
        PlanError: A lesson declares no slides, or does not say what its outputs come from.
    """
    lessons = by_half_day(course)[half]
    (day,) = (each for each in two_days(course) if half in each.halves)
    pages = [_cover(half, lessons, day)]
    held = [slot for slot in day.halves[half] if slot.lesson]
    for lesson in lessons:
        foot = f"{lesson.card.number} · {inline_html(_clause(lesson.card.question))}"
        ran = html.escape(ran_of(lesson).text)
        slot = next((each for each in held if each.lesson is lesson), None)
        said = [
            _Page("".join(map(_part, slide.parts)), "".join(slide.notes), foot, ran)
            for slide in statements(lesson)
        ]
        if lesson.exercises and slot:
            turn = _Page(_turn(lesson, slot, day), html_of(_after_the_exercises(lesson)), foot, ran)
            said.insert(len(said) - (slot is held[-1]), turn)  # the last slide of all is the farewell
        opening = _opening(lesson, _pause_before(slot, day) if slot else "For home")
        pages += [_Page(opening, html_of(OPENING_NOTE), foot, ran), *said]
    sections = [_section(page, number, len(pages)) for number, page in enumerate(pages, start=1)]
    sheets = [_font_faces(), *((FILES / name).read_text() for name in STYLES)]
    styles = "\n".join(f"<style>{sheet}</style>" for sheet in sheets)
    texts = {in_script((FILES / name).read_text()): kind for name, kind in SCRIPTS}
    scripts = "\n".join(f"<script{kind}>{text}</script>" for text, kind in texts.items())
    return "\n".join(
        [
            "<!doctype html>",
            '<html lang="en">',
            f"<!-- reveal.js:\n{(FILES / 'reveal/LICENSE').read_text()}-->",
            f"<!-- IBM Plex:\n{(FILES / 'plex/LICENSE').read_text(encoding='utf-8')}-->",
            '<head><meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{policy([*texts, speaker_script()])}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f"<title>ppwork: {html.escape(half.title)}</title>",
            f'{styles}</head>\n<body><div class="reveal"><div class="slides">',
            *sections,
            f"</div></div>\n{scripts}</body></html>\n",
        ]
    )


def ran_of(lesson: Lesson) -> Ran:
    """Return the origin of a lesson's outputs.

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


def policy(scripts: Iterable[str]) -> str:
    """Return the policy of a page that runs these scripts, and nothing that stands in its text."""
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    return " ".join([POLICY, *(f"'sha256-{each}'" for each in hashes)])


def speaker_script() -> str:
    """Return the script of the speaker view, a page that the notes' script writes and that has our policy."""
    _, _, rest = (FILES / "reveal/notes.js").read_text().partition("<script>")
    script, _, _ = rest.partition("<\\/script>")
    return str(json.loads(f'"{script}"'))


def _font_faces() -> str:
    """Return the style sheet that holds the font files; it never asks for the machine's own copy."""
    faces = []
    for family, weight, style, file in FONTS:
        font = base64.b64encode((FILES / "plex" / f"{file}.woff2").read_bytes()).decode()
        faces.append(
            f'@font-face {{ font-family: "{family}"; font-weight: {weight}; font-style: {style}; '
            f'unicode-range: {LATIN_1}; src: url("data:font/woff2;base64,{font}") format("woff2"); }}'
        )
    return "\n".join(faces)


def _clause(question: str) -> str:
    """Return a question, of a long one its first clause: what a foot has room for."""
    return question if len(question) <= _MOST_OF_A_FOOT else re.split(r"[,:] ", question)[0]


def _cover(half: HalfDay, lessons: Sequence[Lesson], day: Day) -> _Page:
    slots = day.halves[half]
    rows = "".join(map(_slot, slots))
    last = "the end" if half is [*day.halves][-1] else "lunch"
    rows += _slot(TimetableSlot(slots[-1].ends, 0, last)) if slots else ""
    rows += "".join(
        _row("at home", each, each.card.exercise_minutes) for each in day.at_home if each in lessons
    )
    heads = "".join(f"<th>{head}</th>" for head in ("clock", "lesson", "question", "talk", "exercises"))
    shown = (
        f"<h1>{html.escape(half.title)}</h1><p>Pipeline-parallel inference on torch.distributed: see it "
        f'work, break it, measure it.</p><table class="lessons"><tr>{heads}</tr>{rows}</table>'
    )
    ran = html.escape("; ".join(sorted({ran_of(lesson).text for lesson in lessons})))
    measured = f"Figures and numbers are from a run of: {ran}; what a slide calls on paper was reckoned."
    notes = f"{html_of(KEYS)}{html_of(CLOCK)}<p>{measured}</p>"
    return _Page(shown, notes, "ppwork", ran)


def _slot(slot: TimetableSlot) -> str:
    if slot.lesson is None:
        when, rest = clock(slot.starts), "<td></td>" * 2
        return f'<tr class="pause"><td>{when}</td><td></td><td>{slot.what}</td>{rest}</tr>'
    return _row(clock(slot.starts), slot.lesson, slot.exercise_minutes)


def _row(when: str, lesson: Lesson, exercise_minutes: int) -> str:
    card = lesson.card
    minutes = f"{card.minutes} min", f"{exercise_minutes} min"
    cells = (when, card.number, inline_html(card.question), *minutes)
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"


def _opening(lesson: Lesson, when: str) -> str:
    """Return the card of a lesson: question, how it goes on from the last one, what one can do afterwards.

    It stands in the room during the pause before it, and says when that ends; or that the lesson is for home.
    """
    card = lesson.card
    goals = "".join(f"<li>{inline_html(goal)}</li>" for goal in card.goals)
    so_far = f'<div class="part so-far">{html_of(card.so_far)}</div>' if card.so_far else ""
    corner = f'<p class="corner">{when}</p>' if when else ""
    return (
        f'<div class="part">{corner}<p class="section">Lesson {card.number}, {card.minutes} min</p>'
        f"<h1>{inline_html(card.question)}</h1></div>{so_far}"
        f'<div class="part"><h3>Afterwards you can</h3><ul>{goals}</ul></div>{_way(card.about)}'
    )


def _way(about: Sequence[Place]) -> str:
    """Return the way of a chunk, with the places that a lesson is about in colour; empty without any."""
    lit = dict.fromkeys(about, ' class="lit"')
    places = "".join(f"<li{lit.get(place, '')}>{place}</li>" for place in get_args(Place))
    return f'<ol class="way">{places}</ol>' if about else ""


def _turn(lesson: Lesson, slot: TimetableSlot, day: Day) -> str:
    """Return the exercises that a lesson has time for, those for home in a line, and when it goes on."""
    now = day.exercises_of(lesson)
    later = "; ".join(
        f"{each.number} {inline_html(each.title)}" for each in lesson.exercises if each not in now
    )
    rest = f"<p><strong>At home:</strong> {later}</p>" if later else ""
    ends = f"Mend a cell, run it; the check below it says what is missing. {_pause(slot, day)}".rstrip()
    title = f"Your turn, {slot.exercise_minutes} minutes, in notebook {lesson.card.number}"
    return (
        f'<div class="part"><h2 class="statement">{title}</h2></div>'
        f'<table class="tasks">{"".join(map(_task, now))}</table>'
        f'<div class="part">{rest}<p>{ends}</p></div>'
    )


def _after_the_exercises(lesson: Lesson) -> str:
    """Return the note of that slide: what the speaker says when the time is up."""
    answers = [f"- {each.number}: {each.task.answer}" for each in lesson.exercises if each.task.answer]
    return "\n".join([TURN_NOTE, "", "When the time is up:", "", *answers]) if answers else TURN_NOTE


def _pause(slot: TimetableSlot, day: Day) -> str:
    """Return what comes after a lesson that is no lesson; empty, if the next one does."""
    after = next((each for each in day.slots if each.starts >= slot.ends), slot)
    if after.lesson is None:
        return f"Then {after.what} until {clock(after.ends)}."
    return f"Then one more slide, and lunch until {clock(after.starts)}." if after.starts > slot.ends else ""


def _pause_before(slot: TimetableSlot, day: Day) -> str:
    """Return what comes before a lesson that is no lesson; empty, if it begins the half-day."""
    before = next((each for each in day.slots if not each.lesson and each.ends == slot.starts), None)
    return f"{before.what.capitalize()} until {clock(before.ends)}" if before else ""


def _task(exercise: Exercise) -> str:
    """Return the row of an exercise."""
    title, task = exercise.title[:1].upper() + exercise.title[1:], exercise.task
    done = f' <span class="done">Right when {inline_html(task.done)}.</span>' if task.done else ""
    said = f"<strong>{inline_html(title)}</strong><br>{inline_html(task.do)}{done}"
    return f"<tr><td>{exercise.number}</td><td>{said}</td></tr>"


def _part(part: SlidePart) -> str:
    names = ["part"]
    if part.ratio:
        names += ["picture", *["tall"] * (part.ratio < TALL)]
    return f'<div class="{" ".join(names)}">{part.html}</div>'


def _section(page: _Page, number: int, total: int) -> str:
    foot = "".join(f"<span>{text}</span>" for text in (page.foot, page.ran, f"{number} / {total}"))
    return (
        f'<section><div class="page"><div class="body">{page.parts}</div><footer>{foot}</footer></div>'
        f'<aside class="notes">{page.notes}</aside></section>'
    )
