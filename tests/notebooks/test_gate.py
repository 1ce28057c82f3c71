"""Gate over the notebooks as they stand in the repository: executed, normalised, readable."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest

from ppwork.notebooks import dump, normalised

FOLDER = Path(__file__).parent.parent.parent / "notebooks"
LESSONS = sorted(FOLDER.glob("*.ipynb"))
MAX_BYTES = 300_000


@pytest.fixture(params=LESSONS, ids=lambda path: path.name)
def lesson(request):
    return request.param


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def problems(notebook) -> list[str]:
    """Say what is wrong with a lesson."""
    found = []
    code = code_cells(notebook)
    tags = [tag for cell in code for tag in cell.metadata.get("tags", [])]
    if tags.count("parameters") != 1:
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
    if prose < sum(len(cell.source) for cell in code):
        found.append("less than half of it is prose")
    if notebook.metadata.kernelspec.name != "python3":
        found.append("kernelspec is not python3")
    return found


def test_there_is_a_lesson_to_check():
    assert LESSONS


def test_lesson_has_no_problem(lesson):
    assert problems(read(lesson)) == []


def test_lesson_is_normalised_and_small(lesson):
    """If this fails: `ppwork nb refresh` and commit."""
    assert lesson.read_text() == dump(normalised(read(lesson)))
    assert len(lesson.read_bytes()) < MAX_BYTES


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
