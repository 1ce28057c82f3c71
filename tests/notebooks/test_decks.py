"""The decks of this course in a browser without a network: every slide fits, on the screen and on paper.

Its text is in the fonts that the deck brings, so that what fits here fits on a machine with other fonts.
"""

from __future__ import annotations

import re
import shutil
from collections import Counter

import pytest
from anatomy import FOLDER
from browser import browser, page_at

from ppwork.cli.slides import NOTES_FILE, built
from ppwork.lab.course.deck import LATIN_1
from ppwork.lab.course.lessons import HALF_DAYS
from ppwork.lab.course.text import html_of

pytestmark = pytest.mark.notebook

SLIDES = FOLDER.parent / "slides"
MAX_BYTES = 1_500_000
"""Of a deck, as decks are committed."""
MOST_SLIDES = 40
"""Of a half-day, with its cover: what an audience can take."""
SMALLEST_TEXT_PX, SMALLEST_FIXED_PX = 16 * 96 / 72, 12 * 96 / 72
"""16 pt, and 12 pt for what was printed, tables of outputs, and the foot."""

LOOK = """() => {
  const slide = Reveal.getCurrentSlide();
  const body = slide.querySelector(".body"), page = slide.querySelector(".page");
  const size = (one) => parseFloat(getComputedStyle(one).fontSize);
  const fixed = "pre, .output, math, footer";
  const words = [...slide.querySelectorAll("p, li, td, th, figcaption, h1, h2, h3, pre")].filter(
    (one) => one.innerText && !one.closest("aside"));
  const over = (one) => one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1;
  return {
    title: slide.innerText.slice(0, 60),
    page: [page.offsetWidth, page.offsetHeight],
    fits: !over(body) && !over(page) && ![...body.querySelectorAll("pre, .output")].some(
      (one) => one.scrollWidth > one.clientWidth + 1),
    text: Math.min(...words.filter((one) => !one.closest(fixed) || one.matches("figcaption")).map(size)),
    fixed: Math.min(...words.filter((one) => one.closest(fixed)).map(size), 99),
    footer: size(slide.querySelector("footer")),
    strips: [...slide.querySelectorAll("svg.strip")].map(
      (svg) => size(svg) * svg.getBoundingClientRect().width / svg.viewBox.baseVal.width),
    pictures: [...slide.querySelectorAll("img")].map((img) => [img.alt, img.naturalWidth, img.clientHeight]),
    strips: [...slide.querySelectorAll("svg.strip")].map((strip) => strip.clientHeight),
    foot: slide.querySelector("footer").innerText,
    cut: [...slide.querySelectorAll("footer span")].some((one) => one.scrollWidth > one.clientWidth + 1),
    notes: Reveal.getSlideNotes() || "",
    signs: [...new Set(page.textContent)].filter((sign) => sign.trim()),
  };
}"""

MARK = """(selector) => {
  window.asked ??= {};
  for (const one of document.querySelectorAll("[data-says]")) one.removeAttribute("data-says");
  for (const one of document.querySelectorAll(selector)) {
    if (!one.getClientRects().length) continue;
    const text = [...one.childNodes].map((node) => node.nodeType === 3 ? node.data : "").join("");
    const style = getComputedStyle(one), asked = (window.asked[[
      style.fontFamily, style.fontWeight, style.fontStyle, style.textTransform, style.fontVariant
    ]] ??= new Set());
    const signs = [...text].filter((sign) => sign.trim() && !asked.has(sign));
    for (const sign of signs) asked.add(sign);
    if (signs.length) one.dataset.says = "";
  }
}"""
"""Marks elements whose own text has a sign that, in this font, was not asked about on this page yet."""


@pytest.fixture(scope="module")
def decks(tmp_path_factory):
    """The decks of today's lessons, in a folder of their own."""
    folder = tmp_path_factory.mktemp("decks")
    for name, text in built(FOLDER).items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture(scope="module")
def chromium():
    with browser() as started:
        yield started


@pytest.fixture(params=[half.name for half in HALF_DAYS])
def deck(request, decks, chromium):
    """A page for this deck; in the end it has asked for no address but its own, and had no error."""
    address = (decks / f"{request.param}.html").as_uri()
    with page_at(chromium, (address,)) as seen:
        said: list[str] = []
        seen.page.on("console", lambda one: said.append(one.text) if one.type == "error" else None)
        seen.page.set_viewport_size({"width": 1280, "height": 720})
        seen.page.deck_address = address
        yield seen.page
        assert (seen.outside, seen.errors, said) == ([], [], [])


def opened(page):
    page.goto(page.deck_address)
    page.wait_for_function("() => window.Reveal && Reveal.isReady()")
    return page.evaluate("() => Reveal.getTotalSlides()")


class Glyphs:
    """Counts the glyphs that a page draws, by font, as Chromium's own debugger reports them."""

    def __init__(self, page):
        self._page, self._devtools = page, page.context.new_cdp_session(page)
        for domain in ("DOM", "CSS"):
            self._devtools.send(f"{domain}.enable")

    def of(self, selector):
        """Return glyphs by family, of the deck's fonts, and by family, of the machine's.

        Each element with text of its own is asked by itself: Chromium looks only a few levels below the one
        it is asked about. A sign is asked about once for each font and page: to ask takes Chromium a while.
        """
        self._page.evaluate(MARK, selector)
        root = self._devtools.send("DOM.getDocument", {"depth": 0})["root"]["nodeId"]
        nodes = self._devtools.send("DOM.querySelectorAll", {"nodeId": root, "selector": "[data-says]"})[
            "nodeIds"
        ]
        brought, foreign = Counter(), Counter()
        for node in nodes:
            for font in self._devtools.send("CSS.getPlatformFontsForNode", {"nodeId": node})["fonts"]:
                (brought if font["isCustomFont"] else foreign)[font["familyName"]] += font["glyphCount"]
        return brought, foreign


def brought_signs():
    """Every sign that the deck's fonts have; one that no font has is drawn as a box in the deck's own."""
    ends = [part.removeprefix("U+").split("-") for part in LATIN_1.split(", ")]
    return {chr(code) for end in ends for code in range(int(end[0], 16), int(end[-1], 16) + 1)}


def walked(page, total):
    """What there is on every slide, once all of it has come."""
    seen = []
    glyphs = Glyphs(page)
    for _ in range(total):
        brought, foreign = glyphs.of("section.present .page *")
        seen.append({**page.evaluate(LOOK), "brought": brought, "foreign": foreign})
        page.keyboard.press("ArrowRight")
    assert page.evaluate("() => Reveal.isLastSlide()")
    return seen


def test_every_slide_fits_its_page_and_is_legible(deck):
    total = opened(deck)
    seen = walked(deck, total)
    assert 30 <= total <= MOST_SLIDES
    assert [slide["title"] for slide in seen if not slide["fits"]] == []
    assert [slide["foot"] for slide in seen if slide["cut"]] == []
    assert [(slide["title"], slide["foreign"]) for slide in seen if slide["foreign"]] == []
    assert {sign for slide in seen for sign in slide["signs"]} <= brought_signs()
    assert {family for slide in seen for family in slide["brought"]} >= {"IBM Plex Sans", "IBM Plex Mono"}
    assert {tuple(slide["page"]) for slide in seen} == {(1280, 720)}
    assert min(slide["text"] for slide in seen) >= SMALLEST_TEXT_PX
    assert min(slide[what] for slide in seen for what in ("fixed", "footer")) >= SMALLEST_FIXED_PX
    assert min((size for slide in seen for size in slide["strips"]), default=99) >= SMALLEST_TEXT_PX
    pictures = [picture for slide in seen for picture in slide["pictures"]]
    strips = [height for slide in seen for height in slide["strips"]]
    assert min(strips) > 50
    assert len(pictures) + len(strips) >= 12, "a hall looks at figures"
    for alt, width, height in pictures:
        assert len(alt) > 20
        assert width > 300
        assert height > 200
    for number, slide in enumerate(seen, start=1):
        assert f"{number} / {total}" in slide["foot"]
        assert re.search(
            r"ppwork .* · torch .* · Python .* · ((gloo|nccl|one process)( and )?)+ on (cpu|cuda)",
            slide["foot"],
        )
    assert sum(bool(slide["notes"]) for slide in seen) > total / 2


def test_the_deck_prints_with_a_page_for_each_slide(deck):
    deck.goto(f"{deck.deck_address}?print-pdf")
    # reveal takes all slides out of the page before it puts its pages in, so nothing is counted earlier
    deck.wait_for_function("() => document.querySelectorAll('.pdf-page .body').length > 0")
    total = deck.evaluate("() => document.querySelectorAll('section').length")
    assert f"{total} / {total}" in deck.locator("footer").last.inner_text()
    over = deck.evaluate(
        "() => [...document.querySelectorAll('.body')].filter("
        "(one) => one.scrollHeight > one.clientHeight + 1 || one.scrollWidth > one.clientWidth + 1"
        ").map((one) => one.innerText.slice(0, 60))"
    )
    assert over == []
    brought, foreign = Glyphs(deck).of(".pdf-page .page *")
    assert brought
    assert foreign == {}
    pdf = deck.pdf(prefer_css_page_size=True, print_background=True)
    assert len(re.findall(rb"/Type\s*/Page\b", pdf)) == total


@pytest.mark.parametrize("deck", [HALF_DAYS[0].name], indirect=True)
def test_a_formula_has_the_decks_letters_and_a_font_of_the_machine_is_noticed(deck):
    opened(deck)
    add = "(text) => document.querySelector('section.present .body').insertAdjacentHTML('beforeend', text)"
    deck.evaluate(add, html_of(r"The period is $T = \frac{a_1 + b}{2} - 3 \times c$ seconds."))
    glyphs = Glyphs(deck)
    brought, foreign = glyphs.of("section.present math *")
    assert brought["IBM Plex Sans"] >= len("T=a1+b2-3\N{MULTIPLICATION SIGN}c")
    assert foreign == {}
    deck.evaluate(add, "<p style='font-family: serif'>of the machine</p>")
    assert glyphs.of("section.present .page *")[1].total() > 0


@pytest.mark.parametrize("deck", [HALF_DAYS[0].name], indirect=True)
def test_the_speaker_view_opens_and_has_the_notes(deck):
    opened(deck)
    with deck.expect_popup() as popup:
        deck.keyboard.press("s")
    view = popup.value
    view.get_by_text("Figures and numbers are from a run of").wait_for()
    frame = view.frame_locator("#current-slide iframe")
    frame.locator("section.present h1").wait_for()


HOSTILE = (
    "<img src='data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=' onload='window.ran=1'>"
    "<svg onload='window.ran=2'></svg><script>window.ran=3</script>"
    "<iframe src='javascript:parent.ran=4'></iframe><iframe srcdoc='<script>parent.ran=5</script>'></iframe>"
)


def test_what_stands_in_the_text_of_a_deck_does_not_run(decks, chromium):
    """An output that got past the check of outputs, or a deck that somebody changed."""
    path = decks / "changed" / "deck.html"
    path.parent.mkdir()
    text = (decks / f"{HALF_DAYS[0].name}.html").read_text()
    path.write_text(text.replace('<div class="body">', f'<div class="body">{HOSTILE}', 1))
    with page_at(chromium, (path.as_uri(),)) as seen:
        seen.page.goto(path.as_uri())
        seen.page.wait_for_function("() => window.Reveal && Reveal.isReady()")
        assert seen.page.locator("iframe").count() == 2
        assert seen.page.evaluate("() => window.ran") is None
    shutil.rmtree(path.parent)


def test_what_is_committed_is_what_the_lessons_say_today(decks):
    """If this fails: `make slides` and commit."""
    files = {path.name for path in decks.iterdir()}
    assert NOTES_FILE in files
    assert max((decks / name).stat().st_size for name in files) < MAX_BYTES
    stale = [name for name in sorted(files) if (SLIDES / name).read_bytes() != (decks / name).read_bytes()]
    assert stale == []
    assert {path.name for path in SLIDES.iterdir()} == files | {"README.md"}
