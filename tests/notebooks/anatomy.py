"""What every lesson after the start page is made of, in which order; each rule returns what breaks it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from ppwork import lesson
from ppwork.claims.catalogue import claim_of

FOLDER = Path(__file__).parent.parent.parent / "notebooks"
LOOP = ["Predict", "Run", "Compare", "Explain"]
ENDING = ["Exercises", "Key points", "Words"]
MAX_LINES, MAX_POINTS = 15, 5
PARAMETER = re.compile(r"\w+: (int|float|str|bool) = \S+  # \S.*")
SHOWN_SOURCE = re.compile(r'"(ppwork[\w.]*:[\w.]+)"')
CHECK = re.compile(r'lesson\.check\("(\d\d\.\d)", (\w+)\)')
SOLUTION = re.compile(r"<details><summary>Solution</summary>\s+```python\n(.*?)```.*?</details>", re.DOTALL)
OPENED = re.compile(r'open_up\(\w+\["(\w+)"\]((?:, "[^"]+")*)\)')
STARTS = ("pp.launch(", "pp.claims.run_all(")
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
    rules = (card, parameters, loops, ending, cells, pictures, sources, exercises, links)
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
    if "glossary.md#" not in "".join(text for _, text in found.get("Words", [])):
        yield "no word is linked to the glossary"


def cells(notebook):
    for number, cell in enumerate(code_cells(notebook), start=1):
        if len(cell.source.splitlines()) > MAX_LINES:
            yield f"cell {number} has more than {MAX_LINES} lines"
        if cell.source.startswith("%%"):
            continue
        if re.search(r"^\s*(import|from) torch", cell.source, re.MULTILINE):
            yield f"cell {number} imports torch"
        if sum("pp.launch(" in ast.unparse(line) for line in ast.parse(cell.source).body) > 1:
            yield f"cell {number} launches twice; runs to be compared go into one dict"


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
        drawn = re.search(r"(plot_timeline|compare_timelines)\(", cell.source)
        if drawn and not (number < len(code) and "timeline_table(" in code[number].source):
            yield f"cell {number}: a timeline without its table"


def sources(notebook):
    """Source that is shown is the source of today."""
    for number, cell in enumerate(code_cells(notebook), start=1):
        shown = "".join(o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in cell.outputs)
        for path in [*SHOWN_SOURCE.findall(cell.source), *programs_opened(cell.source)]:
            if lesson.source_of(path) not in shown:
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
    """The attempt in the cell gets a hint; the solution under it passes the same check."""
    attempts = 0
    for place, cell in enumerate(notebook.cells):
        called = CHECK.search(cell.source) if cell.cell_type == "code" else None
        if called is None:
            continue
        attempts += 1
        exercise, name = called.groups()
        shown = "".join(output.get("data", {}).get("text/plain", "") for output in cell.outputs)
        if f"exercise {exercise}: not yet. " not in shown:
            yield f"exercise {exercise}: its cell shows no hint"
        solution = SOLUTION.search(notebook.cells[place + 1].source)
        if solution is None:
            yield f"exercise {exercise} has no solution under it"
            continue
        names: dict[str, object] = {}
        exec(solution[1], names)  # noqa: S102  our own notebook
        if not lesson.check(exercise, names[name]).right:
            yield f"exercise {exercise}: its solution is wrong"
    if not attempts:
        yield "no exercise"


def links(notebook):
    """Every file and heading that is linked exists."""
    for cell in notebook.cells:
        for target, anchor in LINK.findall(cell.source) if cell.cell_type == "markdown" else ():
            path = (FOLDER / target).resolve()
            if not path.is_file():
                yield f"link to {target}, which is not there"
            elif anchor and anchor not in anchors(path):
                yield f"link to {target}#{anchor}, which has no such heading"


def anchors(path: Path) -> set[str]:
    found = re.findall(r"^#+ (.+)$", path.read_text(), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}
