"""A small lesson of the second edition with its solutions, as notebooks: nothing in it breaks a rule."""

from __future__ import annotations

from typing import Any

from checkout import ROOT
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from ppwork.lab.question import Option, QuestionFile

BEFORE, FILE, NEXT = (
    next(path.name for path in (ROOT / "notebooks").glob(f"{number:02d}-*.ipynb")) for number in (1, 2, 3)
)
CARD = """\
# Who speaks first?

You leave with two ranks that speak in turn.

| | |
|---|---|
| **Goals** | say who waits |
| **Needs** | lesson 01 |
| **Minutes** | 6, and 8 for the exercises |
| **Ranks** | 2 |
| **Runs on** | CPU, GPU |
| **Step of the plan** | A0 |
"""
PARAMETERS = 'backend: str = "gloo"  # or nccl\nshare_gpu: bool = False  # all ranks on one GPU'
START = "import ppwork as pp\n\n%load_ext ppwork\n\npp.lesson.only_known_parameters()"
PROGRAM = """\
%%ranks 2 --file my_{name}.py{options}
import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
number = torch.zeros(1)

if rank == 0:
    number += 42
    dist.send(number, dst=1)
if rank == 1:
    dist.recv(number, src=0)
print("rank", rank, "has", int(number))

dist.destroy_process_group()
"""
QUESTION = 'guess = pp.lesson.predict("02.first", answer="")\nguess'
QUESTIONS = {
    "02.first": QuestionFile(
        "What does rank 1 print?",
        (
            Option("42", 42, "It waits in recv until the number has come."),
            Option("0", 0, "It would be so if recv did not wait; it does."),
        ),
    )
}
COMPARED = "<p>x</p><details><summary>Choose first; then open this</summary><p>The run says a.</p></details>"
PICTURE = '<figure><img alt="rank 1 stands in recv until rank 0 sends" src="data:,"/></figure>'
HINT = "exercise {}: not yet. Rank 1 prints nothing."


def _text(data: str, html: str = "") -> Any:
    both = {"text/plain": data, **({"text/html": html} if html else {})}
    return new_output("display_data", data=both)


def _code(name: str, source: str, *outputs: Any, tags: tuple[str, ...] = ()) -> Any:
    return new_code_cell(source, id=name, outputs=list(outputs), metadata={"tags": list(tags)})


def _program(name: str, options: str = "", *outputs: Any) -> Any:
    return _code(name, PROGRAM.format(name=name.replace("-", "_"), options=options), *outputs)


def _printed(*more: Any) -> tuple[Any, ...]:
    return (new_output("stream", text="rank 0: rank 0 has 42\nrank 1: rank 1 has 42\n"), *more)


def lesson() -> Any:
    """Return the lesson, executed."""
    cells = [
        new_markdown_cell(CARD, id="card"),
        _code("parameters", PARAMETERS, tags=("parameters",)),
        _code("start", START),
        new_markdown_cell("## One number\n\nA [rank](../GLOSSARY.md#rank) sends. " + "It waits here. " * 60),
        _code("question", QUESTION, _text("What does rank 1 print?\n  a  42\n  b  0")),
        _program("first", " --as first", *_printed(_text("picture", PICTURE))),
        _code("answer", "guess.compare(42)", _text("The run says a.", COMPARED)),
        _code("held", 'pp.expect("02.number", 42, equal=42)', tags=("check",)),
        new_markdown_cell("### Exercise: a second number\n\nSend back twice the number."),
        _program("back", " --check 02.1", *_printed(_text(HINT.format("02.1")))),
        new_markdown_cell("## The library does the same\n\nThese lines are of the transport."),
        _code(
            "source",
            "pp.Plan(backend=backend, share_gpu=share_gpu)\n"
            'pp.lesson.source_of("ppwork.workloads.times:synthetic")',
        ),
        new_markdown_cell("## Break it: nobody sends\n\nNow rank 0 forgets to send."),
        _program("forgets", " --may-fail", *_printed()),
        new_markdown_cell(
            "## Mend it: one of them sends\n\nIt does again.\n\n### Exercise: both directions\n\nDo it."
        ),
        _program("both", " --check 02.2", *_printed(_text(HINT.format("02.2")))),
        new_markdown_cell(
            f"The answers: [solutions](solutions/{FILE}).\n\n## Key points\n\n- one\n- two\n- three\n\n"
            "## Words\n\n[rank](../GLOSSARY.md#rank)\n\n"
            f"Before: [01]({BEFORE}). Next: [03]({NEXT})."
        ),
    ]
    notebook = new_notebook(cells=cells)
    notebook.metadata.kernelspec = {"name": "python3"}
    for count, cell in enumerate((c for c in cells if c.cell_type == "code"), start=1):
        cell.execution_count = count
    show = ["question", "first", "answer", "both", "forgets", "back", "source", "start"]
    notebook.metadata.ppwork = {
        "lesson": 2,
        "question": "Who speaks first?",
        "minutes": 6,
        "exercise_minutes": 8,
        "ranks": 2,
        "runs_on": ["cpu", "gpu"],
        "goals": ["say who waits"],
        "needs": "lesson 01",
        "expect": ["they forget the receiver", "they send twice"],
        "card_step": "A0",
        "ran": {"backend": "gloo", "device": "cpu"},
        "slides": [
            {"title": f"Rank 0 sends, time {n}.", "show": [name], "part": "source", "lines": [1, 2]}
            for n, name in enumerate(show)
        ],
    }
    for slide in notebook.metadata.ppwork.slides:
        if slide["show"] == ["start"]:
            slide["lines"] = [1, 3]
        if slide["show"] == ["source"]:
            slide["lines"] = [1, 2]
        if slide["show"] == ["answer"]:
            del slide["lines"]
            slide["part"] = "output"
        slide["note"] = (
            "Ask who waits for whom before you run it. Then show the picture of both ranks to all."
        )
    _fill(notebook)
    return notebook


def _fill(notebook: Any) -> None:
    """Put in the source that a cell shows, as it stands in the library today."""
    from ppwork.pictures.source import source_of

    cell = next(cell for cell in notebook.cells if cell.id == "source")
    cell.outputs = [_text(source_of("ppwork.workloads.times:synthetic"))]


def solutions() -> Any:
    """Return its solutions."""
    cells = [new_markdown_cell(f"# Solutions: Who speaks first?\n\nOf [the lesson](../{FILE}).")]
    for number, name in (("02.1", "back"), ("02.2", "both")):
        cells.append(_program(name, f" --check {number}", *_printed(_text(f"exercise {number}: right"))))
    return new_notebook(cells=cells, metadata={"ppwork": {"lesson": 2, "solutions": True}})
