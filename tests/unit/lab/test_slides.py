"""From cells to slides: what is shown, what the speaker says, what is refused."""

from __future__ import annotations

import base64
import hashlib
import io
import re
import sys

import msgspec
import nbformat
import pytest
from PIL import Image

from ppwork.cli.slides import built, slides
from ppwork.errors import PlanError, UnavailableError
from ppwork.lab.course.deck import FONTS, deck, in_script
from ppwork.lab.course.lessons import HALF_DAYS, Card, Lesson, by_half_day, lessons_in
from ppwork.lab.course.refresh import ran
from ppwork.lab.course.statements import statements
from ppwork.lab.course.text import html_of
from ppwork.lab.question import Option, Question
from ppwork.pictures.picture import Picture
from ppwork.version import WHEEL

RAN = {"ppwork": "0.1.0", "torch": "2.13.0", "python": "3.11.2", "backend": "gloo", "device": "cpu"}
CARD = {
    "lesson": 5,
    "question": "How < fast?",
    "minutes": 40,
    "ranks": 3,
    "runs_on": ["cpu", "gpu"],
    "ran": RAN,
}


def text(source):
    return nbformat.v4.new_markdown_cell(source)


def code(source, *outputs):
    return nbformat.v4.new_code_cell(source, outputs=list(outputs), execution_count=1)


def printed(words, name="stdout"):
    return nbformat.v4.new_output("stream", text=words, name=name)


def displayed(**data):
    return nbformat.v4.new_output("display_data", data={key.replace("_", "/"): v for key, v in data.items()})


def drawn(width, height):
    """A cell with a picture of this size."""
    picture = io.BytesIO()
    Image.new("RGB", (width, height)).save(picture, format="PNG")
    html = Picture("rank 2 idles", file=picture.getvalue())._repr_html_()
    return code("draw()", displayed(text_html=html))


def slides_for(cells):
    """One slide that shows these cells."""
    names = [f"shown-{number}" for number, _ in enumerate(cells)]
    for name, cell in zip(names, cells, strict=True):
        cell["id"] = name
    return [{"title": "Rank 0 sends", "show": names}]


def lesson(*cells, **changes):
    card = {**CARD, "slides": slides_for(cells), **changes}
    return Lesson("05-how.ipynb", msgspec.convert(card, Card), cells)


def shown(*cells):
    """All that the slides of these cells show."""
    return "".join(part.html for slide in statements(lesson(*cells)) for part in slide.parts)


def test_links_to_files_are_text_and_links_to_the_web_stay():
    found = html_of("[rank](../GLOSSARY.md#rank) and [torch](https://pytorch.org)")
    assert '<span class="term">rank</span>' in found
    assert 'href="https://pytorch.org"' in found
    assert "glossary" not in found


def test_formulas_become_mathml_and_money_is_not_one():
    found = html_of(r"Say $\frac{a}{b}$, for \$5." + "\n\n$$\nx^2\n$$")
    assert found.count("<math") == 2
    assert "<mfrac>" in found
    assert 'display="block"' in found
    assert "$5" in found


@pytest.mark.parametrize(
    ("source", "said"), [(r"$a^b^c$", "formula"), ("![x](../docs/a.png)", "outside the deck")]
)
def test_what_cannot_be_shown_is_refused_with_its_slide(source, said):
    with pytest.raises(PlanError, match=rf"05-how.ipynb, slide 1 \(Rank 0 sends\): .*{said}"):
        statements(lesson(text(source)))


def test_html_in_prose_and_output_is_text():
    found = shown(text("## a </script> <b>"), code("1", printed("</script><!--")))
    assert "</script>" not in found
    assert "&lt;/script&gt;" in found


@pytest.mark.parametrize(
    "output",
    [
        "<SCRIPT>1</script>",
        "<img src=x onerror=alert(1)>",
        "<img/onerror='alert(1)'/>",
        "<svg onload=alert(1)>",
        "<b onclick=alert(1)>a</b>",
        "<iframe src=javascript:alert(1)></iframe>",
        "<a href='javascript:alert(1)'>a</a>",
        "<img src='https://example.org/seen'>",
        "<meta http-equiv=refresh content=0>",
    ],
)
def test_an_output_that_would_run_or_load_something_is_refused(output):
    with pytest.raises(PlanError, match=r"An output has <(?i:script|img|svg|b|iframe|a|meta)"):
        statements(lesson(code("1", displayed(text_html=f"<p>text</p>{output}"))))


def test_a_deck_runs_the_scripts_that_it_came_with_and_no_other():
    html = deck(HALF_DAYS[1], [lesson(text("# A"))])
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]+)"', html)
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    hashes = set(rules["script-src"].split())
    assert all(each.startswith("'sha256-") for each in hashes)
    scripts = re.findall(r"<script[^>]*>(.*?)</script>", html, re.DOTALL)
    digests = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    own = {f"'sha256-{digest}'" for digest in digests}
    assert len(own) == 3
    assert own < hashes
    assert len(hashes - own) == 1  # the speaker view's
    assert "\r" not in html  # a browser would hash another text


def test_a_picture_keeps_its_alternative_text_and_its_shape():
    *_, part = statements(lesson(drawn(400, 100)))[0].parts
    assert 'alt="rank 2 idles"' in part.html
    assert part.ratio == 4


def test_a_picture_that_is_not_wide_has_its_sentence_beside_it():
    for size, names in (((150, 100), "part picture tall"), ((300, 100), "part picture")):
        assert f'<div class="{names}">' in deck(HALF_DAYS[1], [lesson(drawn(*size))])


def test_widgets_and_stderr_are_left_out_and_errors_say_what_they_are():
    view = "application_vnd.jupyter.widget-view+json"
    error = nbformat.v4.new_output("error", ename="PlanError", evalue="no <GPU>", traceback=[])
    found = shown(code("1", printed("noise", "stderr"), displayed(**{view: {}}), error))
    assert "noise" not in found
    assert "PlanError: no &lt;GPU&gt;" in found


@pytest.mark.parametrize("judge", ["run", "sums"])
def test_an_answer_in_a_marked_cell_is_the_right_reply(judge):
    options = Option("a rank", 0, "It sends."), Option("none", 1, "So it is.")
    compared = Question("Who?", options, judge).compare(1)
    found = shown(code("1", displayed(text_plain=repr(compared), text_html=compared._repr_html_())))
    assert "<strong>b&nbsp; none</strong><br>So it is." in found
    assert "It sends." not in found


def test_a_deck_is_one_file_that_loads_nothing_and_says_what_it_comes_from():
    html = deck(HALF_DAYS[1], [lesson(text("# How < fast?"))])
    assert html.count("</script>") == html.count("<script>") == 3
    assert "<link" not in html
    assert "@import" not in html
    assert "default-src 'none'" in html
    assert "05 · How &lt; fast?" in html
    assert "ppwork 0.1.0 · torch 2.13.0 · Python 3.11.2 · gloo on cpu" in html
    assert html.count("<section>") == 3
    assert "<span>3 / 3</span>" in html
    assert "Permission is hereby granted" in html
    assert "font-src data:;" in html
    styles = "".join(re.findall("<style>.*?</style>", html, re.DOTALL))
    addresses = re.findall(r"""url\(["']?([^"')]*)""", styles)
    assert sum(address.startswith("data:font/woff2;base64,") for address in addresses) == len(FONTS)
    assert [address for address in addresses if not address.startswith("data:")] == []
    assert "SIL OPEN FONT LICENSE Version 1.1" in html


def test_a_lesson_that_does_not_say_what_it_was_run_with_is_refused():
    with pytest.raises(PlanError, match="come from") as refused:
        deck(HALF_DAYS[1], [lesson(text("# A"), ran=None)])
    assert "nb refresh" in refused.value.check_first


def test_script_that_is_put_into_a_page_cannot_end_its_element():
    assert in_script("'</script><!--'") == "'<\\/script><\\!--'"


def write(folder, name, cells, **card):
    declared = {**CARD, "slides": slides_for(cells), **card}
    notebook = nbformat.v4.new_notebook(cells=list(cells), metadata={"ppwork": declared})
    (folder / name).write_text(nbformat.writes(notebook))


def test_lessons_are_read_in_order_and_each_half_day_has_a_file(tmp_path):
    write(tmp_path, "13-claims.ipynb", [text("# B")], lesson=13)
    write(tmp_path, "05-how.ipynb", [text("# A")])
    (tmp_path / "notes.ipynb").write_text("no lesson")
    found = lessons_in(tmp_path)
    assert [one.card.number for one in found] == ["05", "13"]
    assert [half.name for half in by_half_day(found)] == ["day-1-afternoon", "day-2-afternoon"]
    files = built(tmp_path)
    assert list(files) == ["day-1-afternoon.html", "day-2-afternoon.html", "INSTRUCTOR.md"]
    assert built(tmp_path) == files


def test_a_folder_without_lessons_and_files_that_are_none_are_refused(tmp_path):
    with pytest.raises(PlanError, match="no lesson"):
        lessons_in(tmp_path)
    write(tmp_path, "05-how.ipynb", [], minutes="many")
    with pytest.raises(PlanError, match=r"card in metadata.ppwork: .*minutes"):
        lessons_in(tmp_path)
    (tmp_path / "05-how.ipynb").write_text("{")
    with pytest.raises(PlanError, match="no notebook"):
        lessons_in(tmp_path)


def test_the_command_writes_all_files_and_says_how_large_they_are(tmp_path, capsys):
    write(tmp_path, "05-how.ipynb", [text("# A")])
    slides(tmp_path / "new" / "slides", tmp_path)
    assert (tmp_path / "new" / "slides" / "day-1-afternoon.html").read_text().startswith("<!doctype html>")
    assert "INSTRUCTOR.md  0.0" in capsys.readouterr().out
    (tmp_path / "file").touch()
    with pytest.raises(PlanError, match="cannot be written"):
        slides(tmp_path / "file", tmp_path)


def test_an_executed_lesson_remembers_the_backend_of_its_runs(tmp_path):
    notebook = nbformat.v4.new_notebook(metadata={"ppwork": CARD})
    summary = tmp_path / "summary.json"
    summary.write_text('{"backend": "nccl", "device": "cuda"}')
    found = ran(notebook, [summary, tmp_path / "of a failed run"])
    assert (found.backend, found.device) == ("nccl", "cuda")
    assert found.torch.startswith("2.")


def test_a_lesson_of_own_programs_has_the_backend_of_its_parameter_or_of_this_machine(monkeypatch):
    monkeypatch.setattr("ppwork.launcher.checks.count_gpus", lambda: 3)
    notebook = nbformat.v4.new_notebook(metadata={"ppwork": CARD})
    assert ran(notebook, []).backend == "nccl"
    notebook.cells = [
        nbformat.v4.new_code_cell('backend: str = "gloo"  # x', metadata={"tags": ["parameters"]})
    ]
    assert (ran(notebook, []).backend, ran(notebook, []).device) == ("gloo", "cpu")


def test_without_the_extra_that_reads_markdown_the_command_says_how_to_get_it(monkeypatch, tmp_path):
    for name in ("ppwork.lab.course.deck", "ppwork.lab.course.slides", "ppwork.lab.course.text"):
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "mistune", None)
    with pytest.raises(UnavailableError, match="mistune is not installed") as refused:
        built(tmp_path)
    assert refused.value.check_first == f'pip install "{WHEEL}[lab]"'
