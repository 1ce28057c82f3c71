"""The course, the docs and the API as one static site: ``make site``, into ``build/site``.

The pages are laid out in a folder of their own as they lie in the repository, so that their links hold.
Lessons are shown as they were last executed; nothing is run.
"""

from __future__ import annotations

import gc
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from reference import reference
from sphinx.cmd.build import main as sphinx

from ppwork.lab.course.lessons import Lesson, by_half_day, lessons_in
from ppwork.lab.course.refresh import CHECK_TAG

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
OUT = ROOT / "build" / "site"
RESULTS = ROOT / "benchmarks" / "results"
PAGES = ("GLOSSARY.md", "CONTRIBUTING.md", "CHANGELOG.md", "README.md", "slides/INSTRUCTOR.md")
DOCS = sorted(set((ROOT / "docs").glob("*.md")) - {ROOT / "docs" / "package.md"})
"""Without the page of the package index, which says again what the README says."""
ROUND_THE_COURSE = ("before-the-workshop", "after-the-workshop")
APPENDICES = sorted((ROOT / "notebooks").glob("appendix-*.ipynb"))
LINK = re.compile(r"(?<!!)\[([^\]]*)\]\(([^)\s:#]+)(#[^)\s]*)?\)")
BEFORE_AND_NEXT = re.compile(r"^(?:Before|Next): \[.*\n?", re.MULTILINE)
"""The end of a lesson; each page of the site has such links by itself."""
RUN_IT = "\n\n*To change this page and run it: `make lab` in the repository, then open `{}` in JupyterLab.*"
API = {
    "ppwork": "The face: what a notebook imports",
    "ppwork.lab.lesson": "Parts of lessons",
    "ppwork.pictures": "Pictures",
    "ppwork.claims": "Claims about torch.distributed",
    "ppwork.faults": "Faults",
    "ppwork.runtime": "The runtime: one rank's end of the pipeline",
    "ppwork.protocol": "The protocol",
    "ppwork.ranks": "What a rank of your own imports",
}
"""Titles of modules. A name that several of them have is documented by the first and linked by the rest."""


ASKS, COMPARES = "pp.lesson.predict(", "guess.compare("
"""The cell that asks, and the one that says whether the guess was right."""
HINT = re.compile(r"^exercise \d\d\.\d: not yet\.", re.MULTILINE)
"""What an attempt at an exercise prints before it is right: it begins to tell the answer."""
PICTURE = "data:image/png"
FOLDED = "hide-output"
"""Tag of a cell whose output is folded; the notebook itself has it where an output says a thing again."""


def laid_out(folder: Path) -> None:
    """Lay all pages out in a new folder, as Sphinx wants them."""
    shutil.copytree(HERE / "_static", folder / "_static")
    pages = [ROOT / name for name in PAGES]
    pages += [*DOCS, *RESULTS.glob("*.md")]
    pages += [*(ROOT / "notebooks").rglob("[0-9][0-9]-*.ipynb"), *APPENDICES]
    kept = {page.resolve() for page in pages}
    for page in pages:
        place = folder / page.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            place.write_text(_linked(page.read_text(), page, kept, folder))
        else:
            nbformat.write(_shown(page, kept, folder), place)
    for picture in (*(ROOT / "docs").glob("*.png"), *RESULTS.glob("*.png")):
        shutil.copy(picture, folder / picture.relative_to(ROOT))
    (folder / "api").mkdir()
    for module, text in reference(API).items():
        (folder / "api" / f"{module}.md").write_text(text)
    (folder / "index.md").write_text(_index(lessons_in(ROOT / "notebooks")))


def _shown(path: Path, kept: set[Path], folder: Path) -> nbformat.NotebookNode:
    """Return a notebook as the site shows it: cells that only check are not there."""
    notebook = nbformat.read(path, as_version=4)
    notebook.cells = [cell for cell in notebook.cells if CHECK_TAG not in cell.metadata.get("tags", [])]
    asked = False
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            cell.source = _linked(cell.source, path, kept, folder)
        elif FOLDED in cell.metadata.get("tags", []) or HINT.search(_printed(cell)):
            _fold(cell, f"Show {'the picture' if PICTURE in str(cell.outputs) else 'what it prints'}")
        elif ASKS in cell.source:
            asked = True
        elif asked and cell.outputs:
            # Who sees what came of it has nothing to guess.
            _fold(cell, "Guess first, then see what came of it")
            asked = COMPARES not in cell.source
    if (number := path.name[:2]).isdecimal():
        notebook.cells[0].source = notebook.cells[0].source.replace("# ", f"# {number} ", 1)
    notebook.cells[-1].source = BEFORE_AND_NEXT.sub("", notebook.cells[-1].source)
    notebook.metadata["language_info"] = nbformat.from_dict({"name": "python", "pygments_lexer": "cell"})
    notebook.cells[0].source += RUN_IT.format(path.relative_to(ROOT))
    return notebook


def _fold(cell: nbformat.NotebookNode, label: str) -> None:
    """Fold a cell's output under a label."""
    cell.metadata["tags"] = [*dict.fromkeys([*cell.metadata.get("tags", []), FOLDED])]
    cell.metadata["mystnb"] = {"code_prompt_show": label}


def _printed(cell: nbformat.NotebookNode) -> str:
    texts = (output.get("text") or output.get("data", {}).get("text/plain", "") for output in cell.outputs)
    return "\n".join(texts)


def _linked(text: str, page: Path, kept: set[Path], folder: Path) -> str:
    """Return Markdown of which every link leads somewhere: to a page, or to a file that is brought along."""

    def link(found: re.Match[str]) -> str:
        target = (page.parent / found[2]).resolve()
        if target in kept:
            return found[0]
        if not target.is_file() or not target.is_relative_to(ROOT):
            return found[1]
        place = folder / target.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(target, place)
        return f"[{found[1]}]({found[2]})"

    return LINK.sub(link, text)


def _index(lessons: list[Lesson]) -> str:
    parts = [(HERE / "index.md").read_text()]
    for half, members in by_half_day(lessons).items():
        entries = [
            f"{each.card.number} {each.card.question.replace('`', '')} <notebooks/{each.file[:-6]}>"
            for each in members
        ]
        parts.append(_toctree(half.title, entries))
    answers = [f"{each.card.number} Solutions <notebooks/solutions/{each.file[:-6]}>" for each in lessons]
    docs = [f"docs/{page.stem}" for page in DOCS if page.stem not in ROUND_THE_COURSE]
    round_it = [*(f"docs/{name}" for name in ROUND_THE_COURSE), "slides/INSTRUCTOR"]
    appendices = [f"notebooks/{page.stem}" for page in APPENDICES]
    pages = [*docs, "CONTRIBUTING", "CHANGELOG"]
    measured = [f"benchmarks/results/{page.stem}" for page in sorted(RESULTS.glob("*.md"))]
    parts.append(_toctree("Appendices", appendices))  # what comes after the last lesson
    parts.append(_toctree("Solutions", answers))
    parts.append(_toctree("Learners and instructors", round_it))
    parts.append(_toctree("Reference", ["About <README>", "GLOSSARY", *pages]))
    parts.append(_toctree("Measured", measured))
    parts.append(_toctree("API", [f"{module} <api/{module}>" for module in API]))
    return "\n\n".join(parts)


def _toctree(caption: str, entries: list[str]) -> str:
    return "\n".join(["```{toctree}", f":caption: {caption}", ":maxdepth: 1", "", *entries, "```"])


def build(out: Path = OUT) -> int:
    """Make the site; returns the exit status of Sphinx, which is not 0 after a warning."""
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as made:
        pages, cache = Path(made, "pages"), Path(made, "cache")
        laid_out(pages)
        options = ["-q", "-W", "--keep-going", "-b", "html", f"-c{HERE}", f"-d{cache}"]
        status = int(sphinx([*options, str(pages), str(out)]))
    for deck in (ROOT / "slides").glob("*.html"):
        shutil.copy(deck, out / "slides")
    return status


if __name__ == "__main__":
    gc.disable()  # all pages stay to the end, and each collection would look at every node of them
    status = build(*map(Path, sys.argv[1:2]))
    print("the warnings above are errors" if status else f"open {OUT / 'index.html'} in a browser")
    raise SystemExit(status)
