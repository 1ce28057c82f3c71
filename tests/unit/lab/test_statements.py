"""Slides that a lesson declares: one statement, one thing to look at, and what the speaker says."""

from __future__ import annotations

import base64
import io
import re

import msgspec
import nbformat
import pytest
from PIL import Image

from ppwork.errors import PlanError
from ppwork.lab.course.deck import deck
from ppwork.lab.course.lessons import HALF_DAYS, Card, Lesson, Task
from ppwork.lab.course.statements import statements
from ppwork.lab.question import Option, Question
from ppwork.pictures.picture import Picture

RAN = {"ppwork": "0.1.0", "torch": "2.13.0", "python": "3.11.2", "backend": "gloo", "device": "cpu"}
CARD = {"lesson": 5, "question": "How?", "minutes": 40, "ranks": 3, "runs_on": ["cpu"], "ran": RAN}
PROGRAM = '%%ranks 2 --file my_a.py\nimport os\n\nprint("a < b", 42)  # says so\n'
OPTIONS = Option("rank 0", "0", "It sends."), Option("rank 1", "1", "It receives.")
ASKED = Question("Who `waits`?", OPTIONS)


def cell(source, *outputs, name="shown"):
    return nbformat.v4.new_code_cell(source, id=name, outputs=list(outputs), execution_count=1)


def output(plain, html=""):
    data = {"text/plain": plain, **({"text/html": html} if html else {})}
    return nbformat.v4.new_output("display_data", data=data)


def printed(words):
    return nbformat.v4.new_output("stream", text=words)


def drawn():
    file = io.BytesIO()
    Image.new("RGB", (400, 100)).save(file, format="PNG")
    return Picture("rank 2 idles", file=file.getvalue())._repr_html_()


def lesson(*cells, **slide):
    made = {"title": "Rank 0 sends first", **({} if "text" in slide else {"show": ["shown"]}), **slide}
    return Lesson("05-how.ipynb", msgspec.convert({**CARD, "slides": [made]}, Card), cells)


def shown(*cells, **slide):
    """All that the slides of these cells show."""
    return ["".join(part.html for part in each.parts) for each in statements(lesson(*cells, **slide))]


def test_a_slide_has_its_statement_the_lines_of_the_source_and_no_output():
    (html,) = shown(cell(PROGRAM, printed("42")), part="source", lines=[1, 2])
    assert html.startswith('<h2 class="statement">Rank 0 sends first</h2>')
    assert '<span class="cs">%%ranks 2 --file my_a.py</span>\n<span class="kn">import</span>' in html
    assert "print" not in html
    assert "42" not in html


def test_lines_from_within_a_block_begin_at_the_left():
    (html,) = shown(cell("if a:\n    b\n    c"), part="source", lines=[2, 3])
    assert '<code><span class="n">b</span>\n<span class="n">c</span></code>' in html


def test_code_is_text_whatever_stands_in_it():
    (html,) = shown(cell(PROGRAM), part="source")
    assert "a &lt; b" in html
    assert '<span class="c1"># says so</span>' in html


def test_a_slide_shows_the_outputs_alone():
    (html,) = shown(cell(PROGRAM, printed("42\n")), part="output")
    assert '<pre class="printed">42</pre>' in html
    assert "import" not in html


@pytest.mark.parametrize(("part", "has_text"), [("printed", True), ("picture", False)])
def test_a_slide_shows_of_an_output_only_what_was_printed_or_only_the_picture(part, has_text):
    (html,) = shown(cell(PROGRAM, output("a", f"<pre>rank 0: 42</pre>{drawn()}")), part=part)
    assert ("rank 0: 42" in html, "<img" in html) == (has_text, not has_text)


def test_two_narrow_texts_stand_side_by_side_and_wide_ones_below_each_other():
    (html,) = shown(cell(PROGRAM, printed("42\n")))
    assert html.count('<div class="beside">') == 1
    (html,) = shown(cell(PROGRAM, printed(100 * "x")))
    assert "beside" not in html


def test_a_cell_may_name_its_own_part_and_lines():
    first = cell("a = 1\n\nif a:\n    b = 2\n    c = 3", printed("one\ntwo\nthree\n"))
    (html,) = shown(first, show=["shown source 4-4", "shown printed 1-1 3-3"])
    assert '<code><span class="n">b</span>' in html
    assert '<pre class="printed">one\n\N{HORIZONTAL ELLIPSIS}\nthree</pre>' in html
    assert "<pre><code>" in html
    assert ">a<" not in html


def test_lines_from_two_places_of_a_source_keep_their_indent_and_say_what_is_left_out():
    (html,) = shown(cell("if a:\n    b\n    c\n    if d:\n        e"), show=["shown source 2-2 4-5"])
    plain = re.sub("<[^>]*>", "", html.partition("<code>")[2])
    assert plain == "b\n\N{HORIZONTAL ELLIPSIS}\nif d:\n    e"


def test_bands_of_a_picture_and_another_sentence_below_it():
    picture = cell("1", output("a", drawn()))
    (html,) = shown(picture, show=["shown picture 0-20 80-100"], caption="Two *rows*.")
    image = Image.open(io.BytesIO(base64.b64decode(re.search(r'base64,([^"]+)"', html)[1])))
    assert image.size == (400, 40)
    assert "<figcaption>Two <em>rows</em>.</figcaption>" in html
    assert "rank 2 idles</figcaption>" not in html
    (html,) = shown(picture, caption="")
    assert "figcaption" not in html


def test_text_stands_above_the_cells_that_a_slide_shows():
    (html,) = shown(cell(PROGRAM), show=["shown source"], text="Depth is **2**.")
    assert html.index("Depth is <strong>2</strong>") < html.index("<pre><code>")


def test_text_stands_where_show_says_so():
    (html,) = shown(
        cell(PROGRAM, printed("42")), show=["shown source", "text", "shown printed"], text="It prints:"
    )
    assert html.index("<pre><code>") < html.index("It prints:") < html.index('<pre class="printed">')
    assert html.count("It prints:") == 1


def test_a_program_in_a_text_looks_as_a_cell_does_and_has_the_options_beside_it():
    asked = cell("guess = pp.lesson.predict(...)\nguess", output(repr(ASKED)))
    (html,) = shown(
        asked, show=["shown options"], text="Two ranks.\n\n```python\nimport os\n```\nBoth run it."
    )
    words, program, rest = re.split(r"<pre><code>|</code></pre>", html)
    assert "<p>Two ranks.</p>" in words
    assert '<span class="kn">import</span>' in program
    assert "<p>Both run it.</p>" in rest
    (html,) = shown(asked, show=["shown options"], text="```python\nimport os\n```")
    beside = html[html.index('<div class="beside">') :]
    assert beside.index("import") < beside.index('<table class="options">')


def test_lines_of_what_was_printed_are_counted_through_all_outputs():
    two = cell(PROGRAM, output("one"), printed("two\nthree"))
    (html,) = shown(two, show=["shown printed 2-3"])
    assert '<pre class="printed">two\nthree</pre>' in html
    assert "one" not in html


def test_every_lesson_begins_with_its_card():
    made = lesson(cell(PROGRAM), part="source")
    card = msgspec.structs.replace(
        made.card, goals=("choose a `depth`",), so_far="It is *right*.", about=("mesh",)
    )
    html = deck(HALF_DAYS[1], [Lesson("05-how.ipynb", card, made.cells)])
    opening = html[html.index("Lesson 05, 40 min") : html.index("Rank 0 sends first")]
    for said in ("How?", "choose a <code>depth</code>", "<em>right</em>", '<li class="lit">mesh</li>'):
        assert said in opening
    assert opening.count('class="lit"') == 1
    assert "Your turn" not in html
    assert 'class="way"' not in deck(HALF_DAYS[1], [made])


def practised(number, *exercises, **card):
    """A lesson with a slide, and with exercises on ranks: each its title and its task."""
    made = lesson(cell(PROGRAM), part="source")
    cells, tasks = [*made.cells], {}
    for k, (title, do) in enumerate(exercises, start=1):
        text = f"Before.\n\n### Exercise: {title}\n\nA hint."
        cells.append(nbformat.v4.new_markdown_cell(text))
        cells.append(cell(f"%%ranks 2 --check {number:02d}.{k}\npass", name=f"tried-{number}-{k}"))
        tasks[f"{number:02d}.{k}"] = Task(do, "rank 0 prints `6`", "it was *late*")
    card = msgspec.structs.replace(made.card, lesson=number, tasks=tasks, **card)
    return Lesson(f"{number:02d}-how.ipynb", card, cells)


def test_a_lesson_ends_with_its_exercises_and_the_time_at_which_it_goes_on():
    drain = ("drain `it`", "Mend the loop of `drain`.")
    course = [practised(number, drain, minutes=40, exercise_minutes=15) for number in (4, 5)]
    html = deck(HALF_DAYS[1], course)
    first, second = html.split('<h2 class="statement">Your turn, 15 minutes, in notebook ')[1:]
    assert (first[:2], second[:2]) == ("04", "05")
    assert "the check below it says what is missing" in first
    task = "<strong>Drain <code>it</code></strong><br>Mend the loop of <code>drain</code>."
    assert f"<td>04.1</td><td>{task}" in first
    assert "Right when rank 0 prints <code>6</code>.</span></td>" in first
    assert "<li>04.1: it was <em>late</em></li>" in first[first.index('<aside class="notes">') :]
    assert "A hint." not in html
    assert "Then break until 14:35.</p>" in first
    assert "Then the survey until 15:40." in second
    cover = html[: html.index("Lesson 04")]
    for row in ("13:30</td><td>04", "14:25</td><td></td><td>break", "14:35</td><td>05"):
        assert row in cover
    assert "15:40</td><td></td><td>the end" in cover
    assert 'Break until 14:35</p><p class="section">Lesson 05' in html
    assert html.count("Break until") == 1


def test_the_last_lesson_says_farewell_after_its_exercises():
    html = deck(HALF_DAYS[1], [practised(number, ("a", "b")) for number in (4, 5)])
    slides = re.findall(r"Rank 0 sends first|Your turn, \d+ minutes, in notebook \d\d", html)
    titles = [slide.partition(",")[0] + slide[-2:] * slide.startswith("Your") for slide in slides]
    assert titles == ["Rank 0 sends first", "Your turn04", "Your turn05", "Rank 0 sends first"]


def test_after_the_morning_there_is_lunch():
    course = [practised(3, ("a", "b"), minutes=50), practised(4, ("a", "b"), minutes=50)]
    html = deck(HALF_DAYS[0], course)
    assert "Then one more slide, and lunch until 13:30." in html
    assert "<td>lunch</td>" in html
    assert "<td>the end</td>" not in html


def test_what_a_day_has_no_time_for_is_at_home_in_its_deck_too():
    tasks = [(f"task {k}", "Mend it.") for k in range(1, 4)]
    course = [practised(number, *tasks, minutes=60, exercise_minutes=30) for number in range(8)]
    decks = [deck(half, course) for half in HALF_DAYS[:2]]
    assert "<td>at home</td><td>06</td>" in decks[1]
    assert "in notebook 05" in decks[1]
    assert "in notebook 06" not in decks[1]
    assert 'For home</p><p class="section">Lesson 06' in decks[1]
    turn = decks[0][: decks[0].index("<strong>At home:</strong>")].rpartition("<h2")[2]
    assert "Task 1" not in turn
    assert "Task 2" in turn


def test_text_in_place_of_a_cell():
    (html,) = shown(text="Two *ranks*.")
    assert "<em>ranks</em>" in html


def test_a_markdown_cell_comes_without_its_heading():
    text = nbformat.v4.new_markdown_cell("## Old title\n\nOne sentence.", id="shown")
    (html,) = shown(text)
    assert "Old title" not in html
    assert "<p>One sentence.</p>" in html


def test_a_question_is_prose_with_its_options():
    source = "guess = pp.lesson.predict(...)\nguess"
    (html,) = shown(cell(source, output(repr(ASKED))), part="output")
    assert '<p class="question">Who <code>waits</code>?</p>' in html
    assert "<td><strong>b</strong></td><td>rank 1</td>" in html
    assert "answer=" not in html


def test_a_question_that_is_the_title_is_not_said_twice():
    asked = cell("guess = pp.lesson.predict(...)\nguess", output(repr(ASKED)))
    (html,) = shown(asked, part="options", title="Who `waits`?")
    assert html.count("waits") == 1
    assert "rank 1" in html


def test_an_answer_is_the_reply_to_the_right_option_and_the_others_are_the_speakers():
    compared = ASKED.compare("1")
    answer = cell("guess.compare('1')", output(repr(compared), compared._repr_html_()))
    made = lesson(answer, part="output", note="Ask again.")
    (slide,) = statements(made)
    html = "".join(part.html for part in slide.parts)
    assert "<strong>b&nbsp; rank 1</strong><br>It receives." in html
    assert "It sends." not in html
    assert "It sends." in "".join(slide.notes)
    assert "Ask again." in slide.notes[0]


def test_a_reply_that_begins_with_a_call_is_told_from_its_option():
    compared = Question(
        "Which?", (Option("2: one, and one", 0, "recv waits."), Option("none", 1, "No."))
    ).compare(0)
    (html,) = shown(cell("1", output(repr(compared), compared._repr_html_())), part="output")
    assert "<strong>a&nbsp; 2: one, and one</strong><br>recv waits." in html


def test_a_picture_stands_below_a_few_lines_and_alone_after_many():
    few = output("a", f"<pre>rank 0: &lt;1&gt;</pre>{drawn()}")
    (html,) = shown(cell(PROGRAM, few), part="output")
    assert '<pre class="printed">rank 0: &lt;1&gt;</pre>' in html
    assert 'alt="rank 2 idles"' in html
    many = output("a", "<pre>" + 12 * "line\n" + "</pre>" + drawn())
    first, second = shown(cell(PROGRAM, many), part="output")
    assert "<img" not in first
    assert second.startswith('<h2 class="statement">Rank 0 sends first</h2>')
    assert "<img" in second


def test_a_picture_comes_without_what_was_printed():
    many = output("a", "<pre>" + 12 * "line\n" + "</pre>" + drawn())
    (html,) = shown(cell(PROGRAM, many), part="picture")
    assert "<img" in html
    assert "line" not in html


def test_long_outputs_are_cut_and_say_so():
    (html,) = shown(cell(PROGRAM, printed("line\n" * 60)), part="output")
    assert html.count("line") == 22
    assert "\N{HORIZONTAL ELLIPSIS}</pre>" in html


@pytest.mark.parametrize(
    ("slide", "said"),
    [
        ({"show": ["nowhere"]}, "no cell 'nowhere'"),
        ({"show": []}, "shows nothing"),
        ({"part": "output"}, "shows nothing"),
        ({"show": ["shown all"]}, "shows 'shown all'"),
        ({"show": ["shown source 3"]}, "shows 'shown source 3'"),
        ({"show": ["shown printed 1-2"]}, "printed 0 lines"),
    ],
)
def test_what_cannot_be_shown_is_refused_with_its_slide(slide, said):
    with pytest.raises(PlanError, match=rf"05-how.ipynb, slide 1 \(Rank 0 sends first\): .*{said}"):
        statements(lesson(cell(PROGRAM), **slide))


def test_an_output_that_would_run_something_and_a_cell_that_never_ran_are_refused():
    with pytest.raises(PlanError, match="An output has <script>"):
        statements(lesson(cell("1", output("a", "<script>1</script>"))))
    never = cell("1")
    never.execution_count = None
    with pytest.raises(PlanError, match="never executed"):
        statements(lesson(never))


def test_a_slide_with_a_word_too_many_in_its_metadata_is_refused():
    with pytest.raises(msgspec.ValidationError, match="unknown field"):
        lesson(cell("1"), colour="red")


def test_the_deck_takes_what_is_declared_and_nothing_else():
    html = deck(HALF_DAYS[1], [lesson(nbformat.v4.new_markdown_cell("# Not a slide"), cell(PROGRAM))])
    assert "Rank 0 sends first" in html
    assert "Not a slide" not in html


def test_a_lesson_that_declares_no_slide_is_refused():
    bare = Lesson("05-how.ipynb", msgspec.convert(CARD, Card), [cell(PROGRAM)])
    with pytest.raises(PlanError, match=r"05-how\.ipynb declares no slide"):
        deck(HALF_DAYS[1], [bare])
