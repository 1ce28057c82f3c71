"""The site in a browser without a network: navigation, search, code, folded answers, a narrow window."""

from __future__ import annotations

import html
import importlib
import re
import subprocess
import sys
from urllib.parse import unquote, urlsplit

import pytest
from anatomy import FOLDER
from browser import browser, page_at

pytestmark = [pytest.mark.notebook, pytest.mark.timeout(300)]
BUILD = FOLDER.parent / "docs" / "site" / "build.py"
LIMIT_S = 270
NARROW, WIDE = {"width": 400, "height": 800}, {"width": 1280, "height": 900}
LESSON = next(path.stem for path in FOLDER.glob("01-*.ipynb"))
TOO_WIDE = "() => document.documentElement.scrollWidth > window.innerWidth"
ROOMS = ("claims", "faults", "lab.lesson", "pictures", "protocol", "ranks", "runtime")
DOCUMENTED = re.compile(r'<dt class="sig[^>]*id="([^"]+)"')
ENTRY = re.compile(
    r'<dt class="sig[^>]*id="([^"]+)">(?:(?!</dt>).)*</dt>\s*'
    r"<dd>(?:<p>Bases:(?:(?!</p>).)*</p>)?\s*(.{9})",
    re.DOTALL,
)
"""A name and the beginning of its text."""
API_LINK = re.compile(r'<a class="reference internal" href="([^"]+)"[^>]*>(?:<[^>]*>)*([^<]+)<')
BROKEN_WORDS = """() => {
  const found = [], range = document.createRange();
  for (const cell of document.querySelectorAll("article table th, article table td:first-child")) {
    const walk = document.createTreeWalker(cell, NodeFilter.SHOW_TEXT);
    for (let node = walk.nextNode(); node; node = walk.nextNode())
      for (const word of node.data.matchAll(/[A-Za-z]+/g)) {
        range.setStart(node, word.index);
        range.setEnd(node, word.index + word[0].length);
        if (new Set([...range.getClientRects()].map((box) => box.top)).size > 1) found.push(word[0]);
      }
  }
  return found;
}"""
LINK = re.compile(r'<(?:a|img|script|link)\b[^>]*?\b(?:href|src)="([^"]+)"')
COLOURS = """() => new Set([...document.querySelectorAll(".cell_input pre span")].map(
  (one) => getComputedStyle(one).color)).size"""
FONTS = """() => [...document.querySelectorAll("pre, code")].map((one) => getComputedStyle(one).fontFamily)"""


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site of today's lessons; Sphinx has nothing to say about it."""
    folder = tmp_path_factory.mktemp("site") / "site"
    command = [sys.executable, str(BUILD), str(folder)]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return folder


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture(scope="module")
def seen(site, chromium):
    with page_at(chromium, (site.as_uri(),)) as seen:
        seen.said = []
        seen.page.on("console", lambda one: seen.said.append(one.text) if one.type == "error" else None)
        yield seen


@pytest.fixture
def page(seen):
    """A page that in the end has asked for no address but the site's, and had no error."""
    seen.page.set_viewport_size(WIDE)
    yield seen.page
    assert (seen.outside, seen.errors, seen.said) == ([], [], [])


def pages(site):
    """All pages but the decks, which have their own test."""
    return [p for p in site.rglob("*.html") if "_static" not in p.parts and not p.name.startswith("day-")]


def test_every_lesson_with_its_solutions_the_docs_and_the_api_are_there(site):
    for notebook in FOLDER.rglob("[0-9][0-9]-*.ipynb"):
        assert (site / notebook.relative_to(FOLDER.parent)).with_suffix(".html").is_file()
    for name in ("GLOSSARY", "docs/architecture", "slides/INSTRUCTOR", "slides/day-1-morning"):
        assert (site / f"{name}.html").is_file()


@pytest.mark.parametrize("module", ["ppwork", *(f"ppwork.{room}" for room in ROOMS)])
def test_the_reference_has_every_public_name_with_a_text_or_a_link_to_its_text(site, module):
    page = (site / "api" / f"{module}.html").read_text()
    here = {name.rpartition(".")[2] for name in DOCUMENTED.findall(page)}
    linked = {html.unescape(text): link for link, text in API_LINK.findall(page)}
    missing = []
    for name in importlib.import_module(module).__all__:
        target, _, place = linked.get(name, "").partition("#")
        there = (site / "api" / target).read_text() if target else ""
        if name not in here and not (there and (not place or f'id="{place}"' in there)):
            missing.append(name)
    assert missing == []


@pytest.mark.parametrize("module", ["ppwork", "ppwork.ranks"])
def test_every_name_that_the_reference_documents_has_a_text(site, module):
    page = (site / "api" / f"{module}.html").read_text()
    assert DOCUMENTED.search(page)
    entries = dict(ENTRY.findall(page))
    assert set(DOCUMENTED.findall(page)) == set(entries)
    assert [name for name, text in entries.items() if not text.startswith("<p>")] == []


def test_the_front_page_says_what_this_is_for_whom_and_where_to_begin(site, page):
    page.goto((site / "index.html").as_uri())
    words = page.locator("article").inner_text()
    for question in ("What is this?", "Who is it for?", "Where to begin?"):
        assert question in words
    page.locator("article table a", has_text="lesson 00").click()
    page.wait_for_url("**/notebooks/00-*.html")
    assert page.locator("article h1").inner_text().startswith("00 ")


def test_every_link_of_every_page_leads_to_a_file_of_the_site(site):
    """And to a place in it that is there; what a page loads is never another host's."""
    ids = {path: set(re.findall(r'\bid="([^"]+)"', path.read_text())) for path in pages(site)}
    missing = set()
    for path in ids:
        for link in map(html.unescape, LINK.findall(path.read_text())):
            parts = urlsplit(link)
            if parts.scheme or link.startswith(("#", "javascript")):
                continue
            target = (path.parent / unquote(parts.path)).resolve()
            places = ids.get(target, {parts.fragment})
            if not target.exists() or (parts.fragment and unquote(parts.fragment) not in places):
                missing.add((path.name, link))
    assert missing == set()


def test_the_navigation_goes_from_lesson_to_lesson(site, page):
    page.goto((site / "index.html").as_uri())
    page.locator(".bd-sidebar-primary a", has_text="00 ").first.click()
    page.wait_for_url("**/notebooks/00-*.html")
    page.locator("a.right-next").click()
    page.wait_for_url("**/notebooks/01-*.html")
    assert "Before:" not in page.locator("article").inner_text()
    page.locator("a.left-prev").click()
    page.wait_for_url("**/notebooks/00-*.html")


def test_the_search_finds_a_word_and_leads_to_its_page(site, page):
    page.goto((site / "search.html").as_uri() + "?q=rendezvous")
    found = page.locator("#search-results li a")
    found.first.wait_for()
    assert "Glossary" in " ".join(found.all_inner_texts())
    page.locator("#search-results li a", has_text="Glossary").first.click()
    page.wait_for_url("**/GLOSSARY.html*")


def test_code_is_monospace_and_coloured_and_what_only_checks_is_not_there(site, page):
    page.goto((site / "notebooks" / f"{LESSON}.html").as_uri())
    fonts = page.evaluate(FONTS)
    assert len(fonts) > 20
    assert {"mono" in font.lower() for font in fonts} == {True}
    assert page.evaluate(COLOURS) > 3
    assert "pp.expect(" not in page.content()
    pictures = page.locator(".cell_output img").all()
    assert pictures
    assert all(len(picture.get_attribute("alt")) > 20 for picture in pictures)


def test_what_came_of_a_program_is_folded_until_the_reader_has_guessed(site, page):
    page.goto((site / "notebooks" / f"{LESSON}.html").as_uri())
    asked = page.locator(".cell").filter(has_text="lesson.predict(").first
    folds = page.locator("details.hide")
    printed = folds.first.locator(".cell_output").first
    assert "write your letter" in asked.locator(".cell_output").inner_text()
    assert not printed.is_visible()
    folds.first.locator("> summary").click()
    assert printed.is_visible()
    assert folds.count() >= 2 * page.content().count("write your letter into")  # the program's, and the reply


def test_answers_are_folded_and_open(site, page):
    lessons = {path: path.read_text() for path in (site / "notebooks").glob("*.html")}
    folded = [path for path, text in lessons.items() if "<details>" in text]
    assert folded
    assert not [path.name for path, text in lessons.items() if "<details open" in text]
    page.goto(folded[0].as_uri())
    page.evaluate("document.querySelectorAll('details.hide').forEach(fold => { fold.open = true })")
    answer = page.locator(".cell_output details").first
    inside = answer.locator("p").first
    assert not inside.is_visible()
    answer.locator("summary").click()
    assert inside.is_visible()


def test_hints_of_first_attempts_are_folded(site, page):
    lessons = sorted(path for path in (site / "notebooks").glob("[01]*.html"))
    assert len(lessons) == 17
    for lesson in (lessons[1], lessons[14]):
        page.goto(lesson.as_uri())
        hints = page.get_by_text(": not yet.")
        assert hints.count() >= 3
        assert not any(hint.is_visible() for hint in hints.all())


def test_no_page_is_wider_than_a_narrow_window(site, chromium):
    """Nor is a word of a table's head or first column broken. Without scripts: they lay nothing out."""
    with page_at(chromium, (site.as_uri(),), scripts=False) as seen:
        seen.page.set_viewport_size(NARROW)
        wide, broken = [], {}
        for path in pages(site):
            seen.page.goto(path.as_uri())
            wide += [path.name] if seen.page.evaluate(TOO_WIDE) else []
            if words := seen.page.evaluate(BROKEN_WORDS):
                broken[path.name] = words
    assert wide == []
    assert broken == {}
