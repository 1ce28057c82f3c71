"""What every lesson is made of, in which order; each rule returns what breaks it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import nbformat
from checkout import ROOT

from ppwork.claims.catalogue import claim_of
from ppwork.pictures import source

FOLDER = ROOT / "notebooks"
SOLUTIONS = FOLDER / "solutions"
LOOP = ["Predict", "Run", "Compare", "Explain"]
ENDING = ["Exercises", "Key points", "Words"]
MAX_LINES, MAX_POINTS = 15, 5
MIN_SLIDES, MAX_SLIDES = 6, 12
PARAMETER = re.compile(r"\w+: (int|float|str|bool) = \S+  # \S.*")
SHOWN_SOURCE = re.compile(r'"(ppwork[\w.]*:[\w.]+)"')
CHECK = re.compile(r'pp\.check\("(\d\d\.\d)", (\w+)\)')
OPENED = re.compile(r'open_up\(\w+\["(\w+)"\]((?:, "[^"]+")*)\)')
STARTS = ("pp.launch(", "pp.launch_script(", "pp.claims.run_all(")
LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)")


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags_of(cell):
    return cell.metadata.get("tags", [])


def sections(notebook) -> dict[str, list]:
    """The cells by ``## `` heading; a Markdown cell may end one section and begin another."""
    found: dict[str, list] = {"": []}
    name = ""
    for cell in notebook.cells:
        parts = [(None, cell.source)] if cell.cell_type == "code" else _parts(cell.source)
        for heading, text in parts:
            name = heading or name
            found.setdefault(name, []).append((cell, text))
    return found


def _parts(text: str) -> list[tuple[str | None, str]]:
    first, *rest = re.split(r"^## (.+)$", text, flags=re.MULTILINE)
    return [(None, first), *zip(rest[::2], rest[1::2], strict=True)]


def headings(cells, level: str) -> list[str]:
    text = "\n".join(text for cell, text in cells if cell.cell_type == "markdown")
    return re.findall(rf"^{level} (.+)$", text, flags=re.MULTILINE)


def anatomy_problems(notebook) -> list[str]:
    """Say what is missing in a lesson, or not in its place."""
    rules = (card, parameters, loops, ending, cells, slides, pictures, sources, exercises, links)
    return [problem for rule in rules for problem in rule(notebook)]


def card(notebook):
    """The title is the question, and the card says what the metadata say."""
    known, first = notebook.metadata.get("ppwork", {}), notebook.cells[0].source
    if first.splitlines()[0] != f"# {known.get('question')}" or not first.splitlines()[0].endswith("?"):
        yield "the title is not the question of the metadata"
    rows = dict(re.findall(r"^\| \*\*(.+?)\*\* \| (.+) \|$", first, flags=re.MULTILINE))
    expected = {
        "Goals": known.get("goals"),
        "Needs": [known.get("needs")],
        "Minutes": [str(known.get("minutes"))],
        "Ranks": [str(known.get("ranks"))],
        "Runs on": [where.upper() for where in known.get("runs_on", [])],
    }
    for row, words in expected.items():
        if not words or not all(word and word in rows.get(row, "") for word in words):
            yield f"the card's row {row} is not what the metadata say: {words}"


def parameters(notebook):
    for cell in code_cells(notebook):
        if "parameters" in tags_of(cell):
            for line in cell.source.splitlines():
                if not PARAMETER.fullmatch(line):
                    yield f"parameter without type or comment: {line}"
    if not code_cells(notebook)[1].source.endswith("\nonly_known_parameters()"):
        yield "the cell after the parameters does not end with only_known_parameters()"


def loops(notebook):
    """Predict, run, compare, explain, once and in this order; ranks are started, something is asserted."""
    found = {name: cells for name, cells in sections(notebook).items() if headings(cells, "###")}
    if not found:
        yield "nothing is predicted, run, compared and explained"
    for name, cells in found.items():
        if headings(cells, "###") != LOOP:
            yield f"section {name!r} has {headings(cells, '###')} and not {LOOP}"
        source = "\n".join(text for cell, text in cells if cell.cell_type == "code")
        if not any(start in source for start in STARTS):
            yield f"section {name!r} has no {' and no '.join(STARTS)}"
        for needed in ("lesson.predict(", ".compare(", "assert "):
            if needed not in source:
                yield f"section {name!r} has no {needed}"
    names = list(sections(notebook))
    broken = [name for name in names if name.startswith("Break it")]
    if not broken or not any(name.startswith("Mend it") for name in names[names.index(broken[0]) :]):
        yield "nothing is broken and mended"


def ending(notebook):
    found = sections(notebook)
    if list(found)[-3:] != ENDING:
        yield f"it does not end with {', '.join(ENDING)}"
    points = re.findall(r"^- ", "".join(text for _, text in found.get("Key points", [])), flags=re.MULTILINE)
    if not 1 <= len(points) <= MAX_POINTS:
        yield f"it has {len(points)} key points"
    if "GLOSSARY.md#" not in "".join(text for _, text in found.get("Words", [])):
        yield "no word is linked to the glossary"


def cells(notebook):
    for number, cell in enumerate(code_cells(notebook), start=1):
        if len(cell.source.splitlines()) > MAX_LINES:
            yield f"cell {number} has more than {MAX_LINES} lines"
        if cell.source.startswith("%%"):
            continue
        if re.search(r"^\s*(import|from) torch", cell.source, re.MULTILINE):
            yield f"cell {number} imports torch"
        launches = [line for line in ast.parse(cell.source).body if "pp.launch" in ast.unparse(line)]
        if len(launches) > 1:
            yield f"cell {number} launches twice; runs to be compared go into one dict"


def slides(notebook):
    """Enough cells are marked for the deck, the card among them; the instructor knows what to expect."""
    kinds = [cell.metadata.get("slideshow", {}).get("slide_type") for cell in notebook.cells]
    many = kinds.count("slide")
    if kinds[0] != "slide" or not MIN_SLIDES <= many <= MAX_SLIDES:
        yield f"it has {many} slides, not {MIN_SLIDES} to {MAX_SLIDES} that begin with the card"
    if set(kinds) - {"slide", "fragment", None}:
        yield f"its slides are marked with {set(kinds)}"
    expected = notebook.metadata.get("ppwork", {}).get("expect", [])
    if not 2 <= len(expected) <= 4:
        yield f"metadata.ppwork.expect has {len(expected)} lines on what goes wrong for learners, not 2 to 4"


def pictures(notebook):
    """The sentence of a picture comes from data; a timeline has its table in the next code cell."""
    code = code_cells(notebook)
    for number, cell in enumerate(code, start=1):
        if cell.source.startswith("%%"):
            continue
        for node in ast.walk(ast.parse(cell.source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pp.show":
                (alt,) = [word.value for word in node.keywords if word.arg == "alt"]
                if isinstance(alt, ast.Constant):
                    yield f"cell {number}: the picture's sentence does not come from data"
        drawn = "pp.pictures.timeline(" in cell.source and ".table" not in cell.source
        if drawn and not (number < len(code) and ".table" in code[number].source):
            yield f"cell {number}: a timeline without its table"


def sources(notebook):
    """Source that is shown is the source of today."""
    for number, cell in enumerate(code_cells(notebook), start=1):
        shown = "".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in cell.outputs)
        for path in [*SHOWN_SOURCE.findall(cell.source), *programs_opened(cell.source)]:
            if source.source_of(path) not in shown:
                yield f"cell {number} shows another {path} than the file has: `ppwork nb refresh`"


def programs_opened(source: str) -> list[str]:
    """The programs of the claims that a cell opens up; those it does not name are all shown."""
    found = []
    for claim_id, names in OPENED.findall(source):
        programs = claim_of(claim_id).programs
        chosen = re.findall(r'"([^"]+)"', names) or programs
        found += [f"ppwork.claims.programs.{programs[name].path}" for name in chosen]
    return found


def exercises(notebook):
    """Every attempt gets a hint here, and every one has its answer in the notebook of solutions."""
    attempts = set()
    for cell in code_cells(notebook):
        called = CHECK.search(cell.source)
        if called is None:
            continue
        attempts.add(called[1])
        if f"exercise {called[1]}: not yet. " not in shown(cell):
            yield f"exercise {called[1]}: its cell shows no hint"
    if not attempts:
        yield "no exercise"
    name = file_of(notebook)
    if f"(solutions/{name})" not in "".join(text for _, text in sections(notebook).get("Exercises", [])):
        yield f"the exercises do not end with a link to solutions/{name}"
    path = SOLUTIONS / name
    solved = solutions_of(nbformat.read(path, as_version=4)) if path.is_file() else set()
    for missing in sorted(attempts ^ solved):
        yield f"exercise {missing} is not in both notebooks, the lesson and its solutions"


def solutions_of(notebook) -> set[str]:
    """The exercises that this notebook answers."""
    called = [CHECK.search(cell.source) for cell in code_cells(notebook)]
    return {found[1] for found in called if found}


def solution_problems(notebook) -> list[str]:
    """Say what is wrong with a notebook of solutions; what is shown is run again by nbval, and here."""
    found = []
    lesson_file = file_of(notebook)
    first = notebook.cells[0].source
    if not first.startswith("# Solutions: ") or f"(../{lesson_file})" not in first:
        found.append(f"it does not begin with its question and a link to ../{lesson_file}")
    for cell in code_cells(notebook):
        called = CHECK.search(cell.source)
        if called and f"exercise {called[1]}: right" not in shown(cell):
            found.append(f"exercise {called[1]}: its solution was not right when it was run")
    return found


def shown(cell) -> str:
    return "".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)


def file_of(notebook) -> str:
    """The file of a lesson, which is also that of its solutions; only the number is in the notebook."""
    number = notebook.metadata.get("ppwork", {}).get("lesson", -1)
    return next((path.name for path in FOLDER.glob(f"{number:02d}-*.ipynb")), f"{number:02d}-")


def links(notebook, folder=FOLDER):
    """Every file and heading that is linked exists."""
    for cell in notebook.cells:
        for target, anchor in LINK.findall(cell.source) if cell.cell_type == "markdown" else ():
            path = (folder / target).resolve()
            if not path.is_file():
                yield f"link to {target}, which is not there"
            elif anchor and anchor not in anchors(path):
                yield f"link to {target}#{anchor}, which has no such heading"


def anchors(path: Path) -> set[str]:
    found = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}
