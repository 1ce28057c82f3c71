"""What every lesson is made of, in which order; each rule returns what breaks it."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import nbformat
from checkout import ROOT

from ppwork.errors import PlanError
from ppwork.lab.course.lessons import TEXT, Statement
from ppwork.lab.course.refresh import CHECK_TAG
from ppwork.lab.question import FOLDER as QUESTIONS
from ppwork.lab.question import questions_of
from ppwork.pictures import source as sources_of_today

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from ppwork.lab.question import QuestionFile

FOLDER = ROOT / "notebooks"
SOLUTIONS = FOLDER / "solutions"
WITH_EXERCISES_ON_RANKS = range(1, 8)
"""Their subject is a program of ranks: so are two of their exercises, and so much of their code."""
ON_RANKS = 0.4
ENDING = ["Key points", "Words"]
FACTS = ("lesson", "question", "minutes", "exercise_minutes", "ranks", "runs_on", "goals", "needs", "expect",
         "card_step", "slides", "ran")  # fmt: skip
MAX_LINES, MAX_WIDTH = 20, 99
PROGRAM_LINES = range(6, 41)
"""Of a whole program, without empty ones."""
MINUTES_A_QUESTION = 9
WORDS_A_MINUTE, PROGRAM_MINUTES, FUNCTION_MINUTES = 180, 4, 2
LINE_S, FIGURE_S, PRINTED_S = 6, 30, 1
"""For a line of code, a figure with its caption, and a line that was printed. Without the last two, readers
needed a fifth more than the cards said; with 3 and 1.5 minutes for exercises five cards were too low."""
SLACK, SLACK_MINUTES = 0.25, 5
MAX_MINUTES = 40
MIN_SLIDES, MAX_SLIDES, SLIDE_LINES, SLIDE_WORDS = 5, 10, 14, 60
STRIP = re.compile(r"^```strip\n.*?^```$", re.DOTALL | re.MULTILINE)
"""In a slide's text: a picture, which is drawn and whose words are labels."""
TORCHS = {"send", "recv", "isend", "irecv", "broadcast", "all_reduce", "all_gather", "barrier", "scatter"}
PARAMETER = re.compile(r"\w+: (int|float|str|bool) = \S+  # \S.*")
CHECK = re.compile(r'pp\.check\(\s*"(\d\d\.\d+)"|^%%ranks .*--check (\d\d\.\d+)')
LINK = re.compile(r"\]\(([^)#\s]+)(?:#([^)\s]+))?\)")
IMAGE = re.compile(r"<img ([^>]*)>")
PRINTED = re.compile(r"<pre>(.*?)</pre>", re.DOTALL)


@dataclass(frozen=True)
class Page:
    """A lesson, the name of its file, and its solutions."""

    notebook: Any
    file: str
    solutions: Any = None
    folder: Path = FOLDER
    questions: Mapping[str, QuestionFile] = field(default_factory=dict)
    """By their whole names."""

    @property
    def known(self) -> dict[str, Any]:
        return self.notebook.metadata.get("ppwork", {})

    @property
    def number(self) -> int:
        return self.known.get("lesson", -1)

    @cached_property
    def code(self) -> list[Any]:
        return code_cells(self.notebook)

    @cached_property
    def programs(self) -> list[Any]:
        """Cells that are whole programs of ranks."""
        return [cell for cell in self.code if is_program(cell)]

    @cached_property
    def attempts(self) -> dict[str, Any]:
        """Cells that try an exercise, by its number."""
        return {number: cell for cell in self.code if (number := exercise_of(cell))}

    def prose(self, end: str = "") -> str:
        """The text of the page, up to the section of this name."""
        texts = []
        for name, cells in sections(self.notebook).items():
            if end and name == end:
                break
            texts += [f"## {name}", *(text for cell, text in cells if cell.cell_type == "markdown")]
        return "\n\n".join(texts)


def read(path: Path) -> Page:
    solutions = SOLUTIONS / path.name
    answers = nbformat.read(solutions, as_version=4) if solutions.is_file() else None
    number = path.name[:2]
    asked = questions_of(number) if (QUESTIONS / f"{number}.toml").is_file() else {}
    questions = {f"{number}.{name}": question for name, question in asked.items()}
    return Page(nbformat.read(path, as_version=4), path.name, answers, questions=questions)


def code_cells(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def tags_of(cell):
    return cell.metadata.get("tags", [])


def is_program(cell) -> bool:
    return cell.source.startswith("%%ranks") or (
        cell.source.startswith("%%writefile") and "init_process_group" in cell.source
    )


def exercise_of(cell) -> str:
    """The exercise that a cell tries, or nothing."""
    found = CHECK.search(cell.source)
    return (found[1] or found[2]) if found else ""


def lines_in(cell) -> list[str]:
    """The lines of code in a cell: no empty ones, no comments."""
    lines = [line.strip() for line in cell.source.splitlines()]
    return [line for line in lines if line and not line.startswith("#")]


def plain(text: str) -> str:
    """The Python of a cell: its magics become empty lines, another language is left out."""
    if text.startswith("%%") and not text.startswith(("%%ranks", "%%writefile")):
        return ""
    return "\n".join("" if line.startswith(("%", "!")) else line for line in text.splitlines())


def tree_of(text: str) -> ast.Module:
    """The Python of a cell; an empty one of what is none, which ``cells`` reports."""
    try:
        return ast.parse(plain(text))
    except SyntaxError:
        return ast.Module(body=[], type_ignores=[])


def shown(cell) -> str:
    """What a cell printed and showed, as text."""
    texts = [o.get("text", "") + o.get("data", {}).get("text/plain", "") for o in cell.outputs]
    return "".join(texts)


def html_of(cell) -> str:
    return "".join(output.get("data", {}).get("text/html", "") for output in cell.outputs)


def printed(cell) -> str:
    """What a cell printed, and the ranks that it started."""
    streams = [output.get("text", "") for output in cell.outputs]
    return "\n".join([*streams, *PRINTED.findall(html_of(cell))])


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


def anatomy_problems(page: Page) -> list[str]:
    """Say what is missing in a lesson, or not in its place."""
    return [problem for rule in RULES for problem in rule(page)]


def card(page):
    """The title is the question, and the card says what the metadata say."""
    known, first = page.known, page.notebook.cells[0].source
    for name in FACTS:
        if name not in known:
            yield f"metadata.ppwork has no {name}"
    lines = first.splitlines()
    if lines[0] != f"# {known.get('question')}" or not lines[0].endswith("?"):
        yield "the title is not the question of the metadata"
    promise = next((line for line in lines[1:] if line.strip()), "")
    if promise.startswith(("|", "#")) or not promise.rstrip().endswith("."):
        yield "below the title there is no sentence that promises something"
    rows = dict(re.findall(r"^\| \*\*(.+?)\*\* \| (.+?) *\|$", first, flags=re.MULTILINE))
    minutes = f"{known.get('minutes')}, and {known.get('exercise_minutes')} for the exercises"
    expected = {
        "Goals": known.get("goals"),
        "Needs": [known.get("needs")],
        "Minutes": [minutes],
        "Ranks": [str(known.get("ranks"))],
        "Runs on": [where.upper() for where in known.get("runs_on", [])],
        "Step of the plan": [known.get("card_step")],
    }
    for row, words in expected.items():
        if not words or not all(word and word in rows.get(row, "") for word in words):
            yield f"the card's row {row} is {rows.get(row)!r}, and not what the metadata say: {words}"
    if not re.search(r"\bA[0-5]\b|^none", str(known.get("card_step"))):
        yield f"the card step is {known.get('card_step')!r}, and neither A0 to A5 nor none"
    many = len(known.get("expect", []))
    if not 2 <= many <= 4:
        yield f"metadata.ppwork.expect has {many} lines on what goes wrong for learners, not 2 to 4"


def minutes(page):
    """The card's minutes are those that words, code, what it showed, runs and exercises take."""
    known = page.known
    attempts = [id(cell) for cell in page.attempts.values()]
    code = [c for c in page.code if id(c) not in attempts and CHECK_TAG not in tags_of(c)]
    text = " ".join([re.sub(r"\]\([^)]*\)", "]", page.prose()), *map(_said, page.questions.values())])
    words = len(re.findall(r"\w[\w'-]*", text))
    runs = known.get("run_minutes", 0)
    seconds = LINE_S * sum(len(lines_in(cell)) for cell in code)
    seconds += FIGURE_S * sum(len(IMAGE.findall(html_of(cell))) for cell in page.code)
    seconds += PRINTED_S * sum(len(printed(cell).splitlines()) for cell in code)
    reading = words / WORDS_A_MINUTE + seconds / 60 + runs
    on_ranks = sum(is_program(cell) for cell in page.attempts.values())
    trying = on_ranks * PROGRAM_MINUTES + (len(attempts) - on_ranks) * FUNCTION_MINUTES
    trying += known.get("task_minutes", 0)  # an open task as the capstone's, or a play on paper
    for name, computed in (("minutes", reading), ("exercise_minutes", trying)):
        said = known.get(name, 0)
        if abs(said - computed) > max(SLACK * computed, SLACK_MINUTES):
            yield f"metadata.ppwork.{name} is {said}, and computed it is {computed:.0f}"
    if known.get("minutes", 0) > MAX_MINUTES:
        yield f"it takes {known['minutes']} minutes, more than {MAX_MINUTES}"


def _said(question: QuestionFile) -> str:
    return " ".join([question.question, *(f"{each.text} {each.reply}" for each in question.options)])


def parameters(page):
    for cell in page.code:
        if "parameters" in tags_of(cell):
            for line in cell.source.splitlines():
                if not PARAMETER.fullmatch(line):
                    yield f"parameter without type or comment: {line}"


def beginning(page):
    """Card, parameters, imports: in this order; a library's run can be put on another backend."""
    cells = page.notebook.cells
    if len(cells) < 3 or "parameters" not in tags_of(cells[1]):
        yield "the second cell is not the one with the parameters"
        return
    start = cells[2]
    for line in ("import ppwork as pp", "%load_ext ppwork"):
        if start.cell_type != "code" or line not in start.source.splitlines():
            yield f"the third cell has no line {line!r}"
    if not start.source.rstrip().endswith("\npp.lesson.only_known_parameters()"):
        yield "the third cell does not end with pp.lesson.only_known_parameters()"
    if any("pp.Plan(" in cell.source for cell in page.code):
        for name in ("backend: str", "share_gpu: bool"):
            if f"{name} = " not in cells[1].source:
                yield f"it has a pp.Plan, and no parameter {name}"


def cells(page):
    """No test code, nothing but ppwork imported, nothing too long or too wide to read."""
    for number, cell in enumerate(page.code, start=1):
        text = plain(cell.source)
        try:
            tree = ast.parse(text)
        except SyntaxError:
            yield f"cell {number} is no Python"
            continue
        imports = [n for n in ast.walk(tree) if isinstance(n, ast.Import | ast.ImportFrom)]
        for one in map(ast.unparse, imports):
            is_file = cell.source.startswith(("%%ranks", "%%writefile"))
            if one.startswith(("from ppwork", "import ppwork")) if is_file else one != "import ppwork as pp":
                yield f"cell {number} has {one!r}"
        if any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
            yield f"cell {number} has an assert; pp.expect in a cell tagged check does it"
        if "plt." in text:
            yield f"cell {number} draws with plt; pp.pictures has the figure, with its sentence"
        for line in cell.source.splitlines():
            if len(line) > MAX_WIDTH:
                yield f"cell {number} has a line of {len(line)} characters: {line[:40]}"
        if not is_program(cell) and len(lines_in(cell)) > MAX_LINES:
            yield f"cell {number} has {len(lines_in(cell))} lines, more than {MAX_LINES}"
        if not is_program(cell) and re.search(r"\b(True|False)$", shown(cell), re.MULTILINE):
            yield f"cell {number} prints True or False; a number says more"


def checks(page):
    """Numbers that the prose relies on are held in cells of their own, which show nothing."""
    for number, cell in enumerate(page.code, start=1):
        holds = "pp.expect(" in cell.source
        is_check = CHECK_TAG in tags_of(cell)
        if holds != is_check:
            yield f"cell {number}: pp.expect stands in a cell tagged {CHECK_TAG}, and nothing else does"
        if is_check and cell.outputs:
            yield f"cell {number} is tagged {CHECK_TAG} and shows something"


def programs(page):
    """Whole programs of plain torch.distributed, each in a cell and a file of its own."""
    names: set[str] = set()
    for cell in page.programs:
        first, *rest = cell.source.splitlines()
        if not first.startswith("%%ranks"):
            continue
        named = re.search(r"--file (my_\w+\.py)", first)
        name = named[1] if named else first
        if named is None or name in names:
            yield f"program {name}: no file my_... of its own (--file)"
        names.add(name)
        body = plain("\n".join(rest))
        few = sum(bool(line.strip()) for line in rest)
        if few not in PROGRAM_LINES:
            yield f"program {name} has {few} lines, not {PROGRAM_LINES[0]} to {PROGRAM_LINES[-1]}"
        is_loose = "--may-fail" in first or "--check" in first
        for needed in ("init_process_group", "destroy_process_group", "print("):
            if needed not in body and "dist." in body and not is_loose:
                yield f"program {name} has no {needed}"
        if re.search(r"""['"]nccl['"]""", body) and "set_device" not in body:
            yield f"program {name} takes nccl without torch.cuda.set_device"
        yield from _functions(name, body)
    lines = {id(cell): len(lines_in(cell)) for cell in page.code if CHECK_TAG not in tags_of(cell)}
    on_ranks, total = sum(lines.get(id(cell), 0) for cell in page.programs), sum(lines.values())
    if page.number in WITH_EXERCISES_ON_RANKS and on_ranks < ON_RANKS * total:
        yield f"{on_ranks} of {total} lines of code are programs of ranks, less than {ON_RANKS:.0%}"
    if not page.programs:
        yield "no program of ranks"


def _functions(name, body):
    functions = [node for node in ast.walk(tree_of(body)) if isinstance(node, ast.FunctionDef)]
    for function in functions:
        if function.name in TORCHS:
            yield f"program {name}: its function {function.name} has a name of torch's"
        for inner in ast.walk(function):
            if isinstance(inner, ast.FunctionDef) and inner is not function:
                yield f"program {name}: the function {inner.name} stands in another one"


def questions(page):
    """Asked often enough, each from the lesson's file, with a reply for every option."""
    names: set[str] = set()
    for number, cell in enumerate(page.code, start=1):
        for name in [] if is_program(cell) else re.findall(r'lesson\.predict\(\s*"([^"]+)"', cell.source):
            names.add(name)
            if name not in page.questions:
                yield f"cell {number}: there is no question {name!r} of this lesson"
    for name in sorted(page.questions.keys() - names):
        yield f"the question {name} is not asked"
    wanted = max(1, page.known.get("minutes", 0) // MINUTES_A_QUESTION)
    if len(names) < wanted:
        yield f"it asks {len(names)} questions in {page.known.get('minutes')} minutes, less than {wanted}"
    for name, question in page.questions.items():
        if question.problem():
            yield f"question {name}: {question.problem()}"
        for option in question.options:
            if not option.reply.rstrip().endswith((".", "!", "?")) or len(option.reply.split()) < 5:
                yield f"question {name}: the option {option.text!r} has no whole sentence for a reply"


def answers(page):
    """Every question is compared with what came out; the answer is folded, as nobody has chosen."""
    asked: dict[str, int] = {}
    for number, cell in enumerate(page.code, start=1):
        for name in list(asked):
            if re.search(rf"\b{re.escape(name)}\.compare\(", cell.source):
                del asked[name]
                if "<details>" not in html_of(cell) or "You said " in shown(cell):
                    yield f"cell {number}: the answer is not folded, as of a reader who has not answered"
        for name in [] if is_program(cell) else re.findall(r"(\w+) = \S*lesson\.predict\(", cell.source):
            asked[name] = number
    for name, at in asked.items():
        yield f"the question of cell {at} is not compared with anything: no {name}.compare( in a later cell"


def broken(page):
    names = list(sections(page.notebook))
    breaks = [n for n, name in enumerate(names) if name.startswith("Break it")]
    if not breaks or not any(name.startswith("Mend it") for name in names[breaks[0] :]):
        yield "nothing is broken and mended"


def ending(page):
    found = sections(page.notebook)
    if list(found)[-2:] != ENDING:
        yield f"it does not end with {', '.join(ENDING)}"
    points = re.findall(r"^- ", "".join(text for _, text in found.get("Key points", [])), flags=re.MULTILINE)
    if not 3 <= len(points) <= 5:
        yield f"it has {len(points)} key points, not 3 to 5"
    words = "".join(text for _, text in found.get("Words", []))
    anchors_of_words = re.findall(r"GLOSSARY\.md#([\w-]+)", words)
    if not anchors_of_words:
        yield "no word is linked to the glossary"
    earlier = page.prose(end="Words")
    for anchor in anchors_of_words:
        if f"GLOSSARY.md#{anchor})" not in earlier:
            yield f"the word {anchor} is not linked where the prose has it first"
    numbers = sorted(int(path.name[:2]) for path in page.folder.glob("[0-9][0-9]-*.ipynb"))
    around = {
        "Before": max((n for n in numbers if n < page.number), default=None),
        "Next": min((n for n in numbers if n > page.number), default=None),
    }
    for name, neighbour in around.items():
        if neighbour is not None and not re.search(
            rf"\b{name}:[^\n]*\]\({neighbour:02d}-[^)]*\.ipynb\)", words
        ):
            yield f"its last lines have no link {name}: to lesson {neighbour:02d}"


def pictures(page):
    """Every picture has a sentence, and the sentence comes from data."""
    for number, cell in enumerate(page.code, start=1):
        for attributes in IMAGE.findall(html_of(cell)):
            alt = re.search(r'alt="([^"]*)"', attributes)
            if alt is None or len(alt[1]) < 20:
                yield f"cell {number}: a picture without a sentence"
        if cell.source.startswith("%%"):
            continue
        for node in ast.walk(tree_of(cell.source)):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "pp.show":
                alts = [word.value for word in node.keywords if word.arg == "alt"]
                if not alts or isinstance(alts[0], ast.Constant):
                    yield f"cell {number}: the picture's sentence does not come from data"


def sources(page):
    """Source that is shown is the source of today."""
    for number, cell in enumerate(page.code, start=1):
        for path, text in sources_in(cell.source):
            if text not in shown(cell):
                yield f"cell {number} shows another {path} than the file has: `ppwork nb refresh`"


def sources_in(text: str):
    """The sources that a cell shows, with their text of today."""
    if text.startswith("%%"):
        return
    for node in ast.walk(tree_of(text)):
        if not isinstance(node, ast.Call) or not all(isinstance(a, ast.Constant) for a in node.args):
            continue
        name = ast.unparse(node.func).rpartition(".")[2]
        values = [word.value for word in node.args]
        if name == "lines_of" and len(values) == 3:
            yield " ".join(map(str, values)), sources_of_today.lines_of(*values)
        elif name == "source_of":
            for path in values:
                yield path, sources_of_today.source_of(path)


def exercises(page):
    """Every attempt gets a hint here, and every one has its answer in the notebook of solutions."""
    for number, cell in page.attempts.items():
        if not number.startswith(f"{page.number:02d}."):
            yield f"exercise {number} has another lesson's number"
        if f"exercise {number}: not yet. " not in shown(cell):
            yield f"exercise {number}: its cell shows no hint"
    if not page.attempts:
        yield "no exercise"
    solved = solutions_of(page.solutions) if page.solutions else set()
    for missing in sorted(page.attempts.keys() ^ solved):
        yield f"exercise {missing} is not in both notebooks, the lesson and its solutions"


def places_of_exercises(page):
    """Two of them are programs of ranks; each has its heading, where it is needed; the link comes last."""
    on_ranks = sum(cell.source.startswith("%%ranks") for cell in page.attempts.values())
    wanted = 2 if page.number in WITH_EXERCISES_ON_RANKS else 1
    if on_ranks < wanted:
        yield f"{on_ranks} exercises are programs of ranks, less than {wanted}"
    places, heading, after = set(), "", ""
    attempts = {id(cell): number for number, cell in page.attempts.items()}
    for name, members in sections(page.notebook).items():
        heading = name
        for cell, text in members:
            if cell.cell_type == "markdown":
                after += text
                heading = (re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE) or [heading])[-1]
            elif id(cell) in attempts:
                places.add(name)
                after = ""
                if not heading.startswith("Exercise"):
                    yield f"exercise {attempts[id(cell)]} stands below {heading!r}, not '### Exercise: ...'"
    if len(attempts) > 2 and len(places) < 2:
        yield "all exercises stand in one section, not where they are needed"
    if f"(solutions/{page.file})" not in after:
        yield f"after the last exercise there is no link to solutions/{page.file}"


def solutions_of(notebook) -> set[str]:
    """The exercises that this notebook answers."""
    return {number for cell in code_cells(notebook) if (number := exercise_of(cell))}


def solution_problems(notebook, lesson_file: str) -> list[str]:
    """Say what is wrong with a notebook of solutions; what is shown is run again by nbval, and here."""
    found = []
    first = notebook.cells[0].source
    if not first.startswith("# Solutions: ") or f"(../{lesson_file})" not in first:
        found.append(f"it does not begin with its question and a link to ../{lesson_file}")
    for cell in code_cells(notebook):
        number = exercise_of(cell)
        if number and f"exercise {number}: right" not in shown(cell):
            found.append(f"exercise {number}: its solution was not right when it was run")
    return found


def links(page):
    """Every file and heading that is linked exists."""
    for cell in page.notebook.cells:
        for target, anchor in LINK.findall(cell.source) if cell.cell_type == "markdown" else ():
            if ":" in target:
                continue
            path = (page.folder / target).resolve()
            if not path.is_file():
                yield f"link to {target}, which is not there"
            elif anchor and anchor not in anchors(path):
                yield f"link to {target}#{anchor}, which has no such heading"


def anchors(path: Path) -> set[str]:
    text = path.read_text()
    if path.suffix == ".ipynb":
        notebook = nbformat.reads(text, as_version=4)
        text = "\n".join(cell.source for cell in notebook.cells if cell.cell_type == "markdown")
    found = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in found}


def slides(page):
    """Each slide has a statement for a title, and one thing to look at that fits it."""
    found = page.known.get("slides", [])
    if not MIN_SLIDES <= len(found) <= MAX_SLIDES:
        yield f"it has {len(found)} slides, not {MIN_SLIDES} to {MAX_SLIDES}"
    cells = {cell.id: cell for cell in page.notebook.cells}
    for number, slide in enumerate(found, start=1):
        for problem in _slide(slide, cells):
            yield f"slide {number}: {problem}"


def _slide(slide, cells):
    try:
        statement = msgspec.convert(slide, Statement)
        excerpts = statement.shown
    except (msgspec.ValidationError, PlanError) as error:
        yield f"it is no slide: {error}"
        return
    if len(statement.title.split()) < 4:
        yield f"its title {statement.title!r} is no sentence"
    if len(statement.note.split()) < 15:
        yield "its note is shorter than two sentences"
    if not (excerpts or statement.text):
        yield "it has neither show nor text"
    prose = STRIP.sub("", statement.text)
    if len(re.findall(r"[^\s|]*\w[^\s|]*", prose)) > SLIDE_WORDS:
        yield f"its text has more than {SLIDE_WORDS} words"
    for excerpt in excerpts:
        name = excerpt.cell
        if name == TEXT:
            continue
        if name not in cells:
            yield f"there is no cell {name!r}"
        elif re.fullmatch(r"cell-\d+|[0-9a-f]{8}(-[0-9a-f-]+)?", name):
            yield f"the cell {name!r} has no name of its own"
        else:
            yield from _excerpt(cells[name], excerpt)


def _excerpt(cell, excerpt):
    if cell.cell_type == "markdown":
        if len(cell.source.split()) > SLIDE_WORDS:
            yield f"the cell {cell.id!r} has more than {SLIDE_WORDS} words"
        return
    length = len(cell.source.splitlines())
    if excerpt.part in ("source", "both"):
        spans = excerpt.lines or ((1, length),)
        if not all(1 <= first <= last <= length for first, last in spans):
            yield f"lines {spans} of {cell.id!r}, which has {length}"
        elif (shown := sum(last - first + 1 for first, last in spans)) > SLIDE_LINES:
            yield f"{shown} lines of {cell.id!r}, more than {SLIDE_LINES}"
    if excerpt.part != "source" and not cell.outputs:
        yield f"the cell {cell.id!r} shows nothing"


RULES = (card, minutes, parameters, beginning, cells, checks, programs, questions, answers, broken, ending,
         pictures, sources, exercises, places_of_exercises, links, slides)  # fmt: skip
