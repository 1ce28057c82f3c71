"""Gate over the notebooks as they stand in the repository: executed, normalised, readable."""

from __future__ import annotations

import re

import made_lesson
import nbformat
import pytest
from anatomy import (
    FOLDER,
    SOLUTIONS,
    Page,
    anatomy_problems,
    code_cells,
    links,
    shown,
    solution_problems,
)
from anatomy import read as page_of
from wording import wording_problems

from ppwork.lab.course.lessons import lessons_in
from ppwork.lab.course.refresh import dump, normalised
from ppwork.lab.course.timetable import two_days
from ppwork.lab.question import Option, QuestionFile

LESSONS = sorted(FOLDER.glob("[0-9][0-9]-*.ipynb"))
APPENDICES = sorted(FOLDER.glob("appendix-*.ipynb"))
SOLVED = sorted(SOLUTIONS.glob("*.ipynb"))
MAX_BYTES = 300_000
RAN_INTO_ITS_LIMIT = re.compile(r"It did not end\.|exit code 124|passed its limit|within the run's limit")
"""What is said of a program that was stopped from outside. One that is to stand has a timeout of its own, so
this was an accident, as of a busy machine."""


@pytest.fixture(params=[*LESSONS, *SOLVED, *APPENDICES], ids=lambda path: f"{path.parent.name}/{path.name}")
def notebook_file(request):
    return request.param


def read(path):
    return nbformat.read(path, as_version=4)


def problems(notebook) -> list[str]:
    """Say what is wrong with a lesson."""
    found = []
    code = code_cells(notebook)
    tags = [tag for cell in code for tag in cell.metadata.get("tags", [])]
    if tags.count("parameters") != (0 if is_solutions(notebook) else 1):
        found.append("needs exactly one parameters cell")
    if not any(cell.outputs for cell in code):
        found.append("was never executed: it has no outputs")
    if not any(cell.outputs and "nbval-ignore-output" not in cell.metadata.get("tags", []) for cell in code):
        found.append("no checked output")
    for number, cell in enumerate(code, start=1):
        if cell.execution_count != number:
            found.append(f"cell {number} was not executed in order")
        may_raise = "raises-exception" in cell.metadata.get("tags", [])
        raised = any(output.output_type == "error" for output in cell.outputs)
        if raised != may_raise:
            found.append(f"cell {number}: tagged raises-exception={may_raise}, raised={raised}")
        if any(line.rstrip().endswith(";") for line in cell.source.splitlines()):
            found.append(f"cell {number} ends a line with ';', which nbval ignores")
        if RAN_INTO_ITS_LIMIT.search(shown(cell)):
            found.append(f"cell {number} ran into its limit: run it again, or give it a longer --limit")
        if "plt.show" in cell.source:
            found.append(f"cell {number} shows a figure without alternative text")
    prose = sum(len(cell.source) for cell in notebook.cells if cell.cell_type == "markdown")
    if not is_solutions(notebook) and 2 * prose < sum(len(cell.source) for cell in code):
        found.append("less than a third of it is prose")
    if notebook.metadata.kernelspec.name != "python3":
        found.append("kernelspec is not python3")
    return found


def is_solutions(notebook) -> bool:
    return notebook.cells[0].source.startswith("# Solutions: ")


def test_there_is_a_lesson_to_check():
    assert LESSONS


def test_notebook_has_no_problem(notebook_file):
    found = problems(read(notebook_file))
    assert not found, "\n".join(found)


def test_notebook_is_normalised_and_small(notebook_file):
    """If this fails: `ppwork nb refresh` and commit."""
    assert notebook_file.read_text() == dump(normalised(read(notebook_file)))
    assert len(notebook_file.read_bytes()) < MAX_BYTES


def test_every_lesson_has_its_solutions_and_they_are_right():
    assert [path.name for path in SOLVED] == [path.name for path in LESSONS]
    for path in SOLVED:
        assert solution_problems(read(path), path.name) == []
        assert list(links(Page(read(path), path.name, folder=SOLUTIONS))) == []


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.name)
def test_lesson_has_the_anatomy_of_a_lesson(path):
    found = anatomy_problems(page_of(path))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.name)
def test_lesson_speaks_as_the_field_does(path):
    found = wording_problems(page_of(path).prose())
    assert not found, "\n".join(found)


def test_every_exercise_says_what_to_do_and_when_it_is_right():
    """A room sees its slide, and not the page."""
    for lesson in lessons_in(FOLDER):
        assert list(lesson.card.tasks) == sorted(each.number for each in lesson.exercises), lesson.file
        for number, task in lesson.card.tasks.items():
            lengths = [len(words.split()) for words in (task.do, task.done, task.answer)]
            assert all(lengths), (number, task)
            assert lengths[0] <= 30, (number, lengths[0])
            assert lengths[1] <= 16, (number, lengths[1])


def test_a_half_day_ends_with_three_things_to_keep():
    """In the last lesson that is held in the room: nobody is there any more to hear those for home."""
    held = [
        [slot.lesson for slot in slots if slot.lesson]
        for day in two_days(lessons_in(FOLDER))
        for slots in day.halves.values()
    ]
    ends = [lessons[-1].file for lessons in held]
    says = [
        path.name for path in LESSONS if "Three things to keep" in page_of(path).known["slides"][-1]["title"]
    ]
    assert says == ends


@pytest.fixture
def page():
    """A lesson that breaks no rule, to be spoilt."""
    questions = dict(made_lesson.QUESTIONS)
    return Page(made_lesson.lesson(), made_lesson.FILE, made_lesson.solutions(), questions=questions)


def test_the_made_lesson_breaks_no_rule(page):
    assert anatomy_problems(page) == []
    assert wording_problems(page.prose()) == []
    assert solution_problems(page.solutions, page.file) == []
    assert problems(page.notebook) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda nb: nb.cells[1].update(outputs=[]), "not right when it was run"),
        (lambda nb: swap(nb.cells[0], "(../0", "(0"), "does not begin with"),
    ],
)
def test_gate_rejects_spoilt_solutions(page, spoil, said):
    spoil(page.solutions)
    found = solution_problems(page.solutions, page.file)
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda nb: [cell.update(outputs=[]) for cell in code_cells(nb)], "never executed"),
        (lambda nb: code_cells(nb)[0].metadata.update(tags=[]), "parameters cell"),
        (lambda nb: code_cells(nb)[1].update(execution_count=9), "not executed in order"),
        (lambda nb: code_cells(nb)[1].metadata.update(tags=["raises-exception"]), "raised=False"),
        (lambda nb: verdict(nb, "It did not end. Rank 0 was in recv."), "ran into its limit"),
        (lambda nb: code_cells(nb)[1].update(source="plt.show()"), "alternative text"),
        (lambda nb: code_cells(nb)[1].update(source="a = 1;"), "nbval ignores"),
        (lambda nb: nb.metadata.kernelspec.update(name="my-env"), "kernelspec"),
    ],
)
def test_gate_rejects_a_spoilt_notebook(page, spoil, said):
    """The gate itself can fail."""
    spoil(page.notebook)
    found = problems(page.notebook)
    assert any(said in problem for problem in found), found


def named(notebook, name):
    return next(cell for cell in notebook.cells if cell.id == name)


def verdict(notebook, words):
    named(notebook, "back").outputs[-1].data.update({"text/plain": words})


def markdown(notebook, words):
    """The Markdown cell that has these words."""
    return next(cell for cell in notebook.cells if cell.cell_type == "markdown" and words in cell.source)


def swap(cell, old, new):
    assert old in cell.source
    cell.source = cell.source.replace(old, new)


def add(notebook, name, lines):
    named(notebook, name).source += f"\n{lines}"


def slide(notebook, number, **changes):
    notebook.metadata.ppwork.slides[number].update(changes)


def without(notebook, name):
    notebook.cells.remove(named(notebook, name))


OF_ITS_OWN = "def outer():\n    def inner():\n        pass"


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda nb: nb.metadata.ppwork.update(question="Another?"), "title is not the question"),
        (
            lambda nb: swap(nb.cells[0], "You leave with two ranks that speak in turn.", ""),
            "promises something",
        ),
        (lambda nb: nb.metadata.ppwork.update(goals=["nothing"]), "row Goals"),
        (lambda nb: nb.metadata.ppwork.update(exercise_minutes=9), "row Minutes"),
        (lambda nb: nb.metadata.ppwork.update(card_step="A9"), "card step"),
        (lambda nb: nb.metadata.ppwork.update(expect=[]), "what goes wrong"),
        (lambda nb: nb.metadata.ppwork.pop("card_step"), "has no card_step"),
        (lambda nb: nb.metadata.ppwork.update(minutes=20), "computed it is"),
        (lambda nb: nb.metadata.ppwork.update(exercise_minutes=20), "computed it is 8"),
        (lambda nb: nb.metadata.ppwork.update(minutes=44), "more than 40"),
        (
            lambda nb: named(nb, "first").outputs[1].data.update({"text/html": 20 * made_lesson.PICTURE}),
            "computed it is 1",
        ),
        (lambda nb: named(nb, "parameters").update(source="chunks = 3"), "without type or comment"),
        (lambda nb: swap(named(nb, "parameters"), "share_gpu", "other"), "no parameter share_gpu"),
        (lambda nb: nb.cells.insert(1, nb.cells.pop(2)), "second cell is not"),
        (lambda nb: swap(named(nb, "start"), "%load_ext ppwork", ""), "no line '%load_ext"),
        (lambda nb: swap(named(nb, "start"), "only_known", "known"), "only_known_parameters()"),
        (lambda nb: add(nb, "answer", "from ppwork.plan import Plan"), "from ppwork.plan import Plan"),
        (lambda nb: add(nb, "answer", "import re"), "'import re'"),
        (lambda nb: add(nb, "first", "import ppwork.ranks"), "'import ppwork.ranks'"),
        (lambda nb: add(nb, "first", "assert rank < 2"), "has an assert"),
        (lambda nb: add(nb, "answer", "a +"), "is no Python"),
        (lambda nb: add(nb, "answer", "plt.plot()"), "draws with plt"),
        (lambda nb: add(nb, "answer", "# " + 100 * "x"), "line of 102 characters"),
        (lambda nb: add(nb, "answer", "print(1)\n" * 20), "has 21 lines"),
        (
            lambda nb: named(nb, "answer").outputs[0].data.update({"text/plain": "is late: True"}),
            "prints True",
        ),
        (lambda nb: add(nb, "answer", "pp.expect('02.number', 42, equal=42)"), "in a cell tagged check"),
        (lambda nb: named(nb, "held").update(outputs=named(nb, "answer").outputs), "shows something"),
        (lambda nb: swap(named(nb, "first"), "--file my_first.py", ""), "of its own (--file)"),
        (lambda nb: swap(named(nb, "first"), "my_first", "my_both"), "my_both.py: no file"),
        (lambda nb: add(nb, "first", "print(1)\n" * 40), "lines, not 6 to 40"),
        (lambda nb: swap(named(nb, "first"), "dist.destroy_process_group()", ""), "no destroy_process_group"),
        (lambda nb: swap(named(nb, "first"), '"gloo"', '"nccl"'), "without torch.cuda.set_device"),
        (lambda nb: add(nb, "first", OF_ITS_OWN), "inner stands in another"),
        (lambda nb: add(nb, "first", "def send():\n    pass"), "a name of torch's"),
        (lambda nb: add(nb, "source", "print(1)\n" * 200), "are programs of ranks, less than 40%"),
        (lambda nb: swap(named(nb, "question"), "02.first", "02.last"), "no question '02.last'"),
        (lambda nb: swap(named(nb, "question"), "02.first", "02.last"), "question 02.first is not asked"),
        (lambda nb: swap(named(nb, "answer"), "guess", "other"), "not compared with anything"),
        (lambda nb: named(nb, "answer").update(outputs=[]), "answer is not folded"),
        (lambda nb: nb.metadata.ppwork.update(minutes=18), "asks 1 questions"),
        (lambda nb: swap(markdown(nb, "## Break it"), "## Break it", "## See"), "broken and mended"),
        (lambda nb: swap(markdown(nb, "## Words"), "## Words", "## More"), "does not end with"),
        (lambda nb: swap(markdown(nb, "## Key points"), "\n- one", ""), "2 key points"),
        (lambda nb: swap(markdown(nb, "## Words"), "GLOSSARY.md#", "GLOSSARY.md"), "linked to the glossary"),
        (
            lambda nb: swap(markdown(nb, "## One"), "(../GLOSSARY.md#rank)", "()"),
            "where the prose has it first",
        ),
        (lambda nb: swap(markdown(nb, "## Words"), "Next:", "Then:"), "no link Next:"),
        (lambda nb: swap(markdown(nb, "## Words"), "(01-", "(00-"), "no link Before:"),
        (lambda nb: swap(markdown(nb, "## Words"), "GLOSSARY.md#rank", "GLOSSARY.md#no"), "no such heading"),
        (lambda nb: swap(markdown(nb, "## Words"), "GLOSSARY.md", "nowhere.md"), "which is not there"),
        (
            lambda nb: named(nb, "first").outputs[1].data.update({"text/html": "<img src='a'>"}),
            "without a sentence",
        ),
        (lambda nb: add(nb, "answer", "pp.show(0, alt='x')"), "not come from data"),
        (lambda nb: named(nb, "source").update(outputs=[]), "than the file has"),
        (lambda nb: named(nb, "back").update(outputs=[]), "shows no hint"),
        (lambda nb: swap(named(nb, "back"), "--check 02.1", "--check 03.1"), "another lesson's number"),
        (lambda nb: swap(named(nb, "back"), "--check 02.1", "--check 02.7"), "is not in both notebooks"),
        (lambda nb: without(nb, "back"), "less than 2"),
        (lambda nb: swap(markdown(nb, "## Mend"), "### Exercise: both", "### Both"), "stands below"),
        (lambda nb: swap(markdown(nb, "(solutions/"), "(solutions/", "(../"), "no link to solutions/"),
        (lambda nb: nb.metadata.ppwork.update(slides=[]), "0 slides"),
        (lambda nb: slide(nb, 0, title="Sending it"), "is no sentence"),
        (lambda nb: slide(nb, 0, note="Ask."), "its note"),
        (lambda nb: slide(nb, 0, show=[]), "neither show nor text"),
        (lambda nb: slide(nb, 0, show=["nowhere"]), "no cell 'nowhere'"),
        (lambda nb: slide(nb, 0, colour="red"), "unknown field `colour`"),
        (lambda nb: slide(nb, 0, part="all"), "Invalid enum value 'all'"),
        (lambda nb: slide(nb, 1, lines=[1, 16]), "more than 14"),
        (lambda nb: slide(nb, 1, lines=[1, 99]), "which has"),
        (lambda nb: slide(nb, 7, part="output"), "shows nothing"),
        (
            lambda nb: nb.metadata.ppwork.slides.append({"title": "What is it?", "text": "w " * 70}),
            "60 words",
        ),
    ],
)
def test_gate_rejects_a_lesson_without_its_anatomy(page, spoil, said):
    spoil(page.notebook)
    found = anatomy_problems(page)
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize(
    ("reply", "said"), [("Yes.", "no whole sentence for a reply"), ("", "has no reply")], ids=["word", "none"]
)
def test_gate_rejects_a_question_that_does_not_reply(page, reply, said):
    asked = page.questions["02.first"]
    options = (asked.options[0], Option("0", 0, reply))
    page.questions["02.first"] = QuestionFile(asked.question, options)
    found = anatomy_problems(page)
    assert any(said in problem for problem in found), found


@pytest.mark.parametrize(
    ("prose", "said"),
    [
        ("As C04 says.", ["C04"]),
        ("Rule R2 and [fault F07](../docs/x.md).", ["R2", "F07"]),
        ("Steps A0 to A5 and PP0, an A10, rank 12.", []),
        ("[^1]: claim C04\n\n```\nppwork claims C04\n```", []),
        ("It ends at the bound. A bound to a name is none.", ["'the bound'"]),
        ("The transfer is bound by bandwidth.", []),
    ],
)
def test_words_that_a_lesson_does_not_have(prose, said):
    found = wording_problems(prose)
    assert len(found) == len(said), found
    assert all(word in problem for word, problem in zip(said, found, strict=True))
