"""Gate over the notebooks as they stand in the repository: executed, normalised, readable."""

from __future__ import annotations

import copy

import nbformat
import pytest
from anatomy import FOLDER, SOLUTIONS, anatomy_problems, code_cells, links, solution_problems, solutions_of

from ppwork.lab.course.refresh import dump, normalised

LESSONS = sorted(FOLDER.glob("*.ipynb"))
SOLVED = sorted(SOLUTIONS.glob("*.ipynb"))
SPOILT = FOLDER / "04-what-does-the-sequential-pipeline-cost.ipynb"
"""The lesson that tests spoil in every way that the gate should see."""
MAX_BYTES = 300_000


@pytest.fixture(params=[*LESSONS, *SOLVED], ids=lambda path: f"{path.parent.name}/{path.name}")
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
        if "plt.show" in cell.source:
            found.append(f"cell {number} shows a figure without alternative text")
    prose = sum(len(cell.source) for cell in notebook.cells if cell.cell_type == "markdown")
    if not is_solutions(notebook) and prose < sum(len(cell.source) for cell in code):
        found.append("less than half of it is prose")
    if notebook.metadata.kernelspec.name != "python3":
        found.append("kernelspec is not python3")
    return found


def is_solutions(notebook) -> bool:
    return notebook.metadata.ppwork.get("solutions", False)


def test_there_is_a_lesson_to_check():
    assert LESSONS


def test_notebook_has_no_problem(notebook_file):
    assert problems(read(notebook_file)) == []


def test_notebook_is_normalised_and_small(notebook_file):
    """If this fails: `ppwork nb refresh` and commit."""
    assert notebook_file.read_text() == dump(normalised(read(notebook_file)))
    assert len(notebook_file.read_bytes()) < MAX_BYTES


def test_every_lesson_has_its_solutions_and_they_are_right():
    assert [path.name for path in SOLVED] == [path.name for path in LESSONS]
    for path in SOLVED:
        assert solution_problems(read(path)) == []
        assert list(links(read(path), SOLUTIONS)) == []


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda nb: code(nb, "pp.check(").update(outputs=[]), "not right when it was run"),
        (lambda nb: swap(nb.cells[0], "(../0", "(0"), "does not begin with"),
    ],
)
def test_gate_rejects_spoilt_solutions(spoil, said):
    notebook = read(SOLVED[0])
    assert solutions_of(notebook)
    spoil(notebook)
    assert any(said in problem for problem in solution_problems(notebook))


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda nb: [cell.update(outputs=[]) for cell in code_cells(nb)], "never executed"),
        (lambda nb: code_cells(nb)[0].metadata.update(tags=[]), "parameters cell"),
        (lambda nb: code_cells(nb)[1].update(execution_count=9), "not executed in order"),
        (lambda nb: code_cells(nb)[1].metadata.update(tags=["raises-exception"]), "raised=False"),
        (lambda nb: code_cells(nb)[1].update(source="plt.show()"), "alternative text"),
        (lambda nb: nb.metadata.kernelspec.update(name="my-env"), "kernelspec"),
    ],
)
def test_gate_rejects_a_spoilt_lesson(spoil, said):
    """The gate itself can fail."""
    notebook = read(LESSONS[0])
    spoil(notebook)
    assert any(said in problem for problem in problems(notebook))


@pytest.mark.parametrize("path", LESSONS, ids=lambda path: path.name)
def test_lesson_has_the_anatomy_of_a_lesson(path):
    assert anatomy_problems(read(path)) == []


def markdown(notebook, words):
    """The Markdown cell that has these words."""
    return next(cell for cell in notebook.cells if cell.cell_type == "markdown" and words in cell.source)


def code(notebook, words):
    return next(cell for cell in code_cells(notebook) if words in cell.source)


def swap(cell, old, new):
    assert old in cell.source
    cell.source = cell.source.replace(old, new)


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda nb: nb.metadata.ppwork.update(question="Another?"), "title is not the question"),
        (lambda nb: nb.metadata.ppwork.update(minutes=99), "row Minutes"),
        (lambda nb: nb.metadata.ppwork.update(goals=["nothing"]), "row Goals"),
        (lambda nb: code_cells(nb)[0].update(source="chunks = 3"), "without type or comment"),
        (lambda nb: swap(markdown(nb, "### Explain"), "### Explain", "### Notes"), "and not ['Predict'"),
        (lambda nb: code(nb, "lesson.predict(").update(source="1"), "has no lesson.predict("),
        (lambda nb: swap(markdown(nb, "## Break it"), "## Break it", "## See"), "broken and mended"),
        (lambda nb: swap(markdown(nb, "## Words"), "## Words", "## More"), "does not end with"),
        (lambda nb: swap(markdown(nb, "## Key points"), "\n- ", "\n- a\n- "), "key points"),
        (lambda nb: swap(markdown(nb, "## Words"), "GLOSSARY.md#", "GLOSSARY.md"), "linked to the glossary"),
        (lambda nb: swap(markdown(nb, "## Words"), "GLOSSARY.md#", "GLOSSARY.md#no"), "no such heading"),
        (lambda nb: swap(markdown(nb, "## Words"), "GLOSSARY.md", "nowhere.md"), "which is not there"),
        (lambda nb: code(nb, "pp.launch(").update(source="1\n" * 16), "more than 15 lines"),
        (lambda nb: swap(code(nb, "import ppwork"), "import ppwork as pp", "import torch"), "imports torch"),
        (lambda nb: swap(code(nb, "pp.launch(plan"), "pp.l", "pp.launch(plan)\npp.l"), "launches twice"),
        (lambda nb: code(nb, "pictures.chunks(").update(source="pp.show(0, alt='x')"), "not come from data"),
        (lambda nb: swap(code(nb, "print(picture.table"), ".table", ""), "without its table"),
        (lambda nb: code(nb, "lesson.source_of(").update(outputs=[]), "than the file has"),
        (lambda nb: code(nb, "pp.check(").update(outputs=[]), "shows no hint"),
        (lambda nb: swap(code(nb, "pp.check("), "pp.check(", "str("), "is not in both notebooks"),
        (lambda nb: swap(markdown(nb, "(solutions/"), "(solutions/", "(../"), "do not end with a link"),
        (lambda nb: swap(code(nb, "import ppwork"), "only_known", "known"), "only_known_parameters()"),
        (lambda nb: nb.metadata.ppwork.update(expect=[]), "what goes wrong for learners"),
        (lambda nb: nb.cells[0].metadata.update(slideshow={}), "begin with the card"),
        (lambda nb: nb.cells[1].metadata.update(slideshow={"slide_type": "skip"}), "marked with"),
    ],
)
def test_gate_rejects_a_lesson_without_its_anatomy(spoil, said):
    notebook = copy.deepcopy(read(SPOILT))
    spoil(notebook)
    assert any(said in problem for problem in anatomy_problems(notebook)), anatomy_problems(notebook)
