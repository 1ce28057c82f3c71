"""What pages and docstrings name is there: files, modules, names of the face, and members of our classes."""

from __future__ import annotations

import ast
import json
import pkgutil
import re
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

import ppwork
from ppwork.cli.main import app

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "GLOSSARY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "notebooks").rglob("*.ipynb")),
]
PATH = re.compile(r"\b(?:ppwork|tests|benchmarks|scripts|docs|notebooks|slides)/[\w./-]*[\w/]")
DOTTED = re.compile(r"\bppwork((?:\.[A-Za-z_]\w*)+)(?::([A-Za-z_]\w*))?")
FACE = re.compile(r"\bpp((?:\.[A-Za-z_]\w*)+)")
COMMAND = re.compile(r"^(?:\$ )?ppwork ([a-z].*)$|`ppwork ([a-z][^`]*)`", re.MULTILINE)
MEMBER = re.compile(r"`([A-Z]\w+)\.([a-z_]\w*)")
IN_DOCSTRING = re.compile(r"``([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+)(?:\(\))?``")
ELSEWHERE = re.compile(r"\bD[E]SIGN\b|\b[Ii]ssue \d+")  # in brackets: the line does not cite itself
FILE_NAME = re.compile(r"\w+\.(css|json|log|py|txt)")
TORCHS = {"torch", "dist", "nn", "Work"}
"""Of torch, which these tests do not import."""
KEYS = {"context.latents", "context.sigma", "env.OMP_NUM_THREADS", "version.torch", "param.NAME"}
"""Keys with a dot in them: of tensors, of facts, of columns."""
ARGUMENTS = {"chunk": "ppenvelope"}
"""What an argument is, where its name is not the end of its class's name."""


@pytest.fixture(params=PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def text(request) -> str:
    """A page's text; of a notebook its prose, and its code for what that imports."""
    if request.param.suffix != ".ipynb":
        return request.param.read_text()
    return "\n".join("".join(cell["source"]) for cell in json.loads(request.param.read_text())["cells"])


@cache
def names_in(path: Path) -> frozenset[str]:
    """Names that a module defines or imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname or alias.name for alias in node.names)
    return frozenset(names)


@cache
def members() -> dict[str, set[str]]:
    """Attributes and methods of each class of the package, its bases' too."""
    own, bases = defaultdict(set), defaultdict(set)
    for path in (ROOT / "ppwork").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ClassDef):
                continue
            bases[node.name] |= {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            for part in ast.walk(node):
                if isinstance(part, ast.FunctionDef):
                    own[node.name].add(part.name)
                elif isinstance(part, ast.Name | ast.Attribute) and isinstance(part.ctx, ast.Store):
                    own[node.name].add(part.id if isinstance(part, ast.Name) else part.attr)

    def of(name: str) -> set[str]:
        return own[name].union(*(of(base) for base in bases[name] if base in own and base != name))

    return {name: of(name) for name in list(own)}


@cache
def commands() -> Any:
    """All commands, as the command line has them; made in half a second."""
    return get_command(app)


def is_in_package(dotted: str, name: str) -> bool:
    """Say whether ``ppwork.room.file.name`` is a module, or a name of one."""
    parts, path = dotted.split(".")[1:], ROOT / "ppwork"
    while parts and ((path / parts[0]).is_dir() or (path / f"{parts[0]}.py").is_file()):
        path /= parts.pop(0)
    module = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    rest = [*parts, name] if name else parts
    return not rest or rest[0] in names_in(module) or (path.name == "ppwork" and rest[0] in ppwork.__all__)


def is_on_face(dotted: str) -> bool:
    """Say whether ``pp.name`` is there; what a value of it has is another test's."""
    value: object = ppwork
    for part in dotted.split(".")[1:]:
        if not hasattr(value, part):
            return False
        value = getattr(value, part)
        if not (isinstance(value, type) or type(value).__name__ == "module"):
            return True
    return True


@cache
def modules() -> dict[str, Path]:
    """Files of the package by dotted name."""
    files = {path.relative_to(ROOT).with_suffix(""): path for path in (ROOT / "ppwork").rglob("*.py")}
    return {".".join(name.parts).removesuffix(".__init__"): path for name, path in files.items()}


def is_name_of_ours(dotted: str) -> bool:
    """Say whether ``Class.member``, ``argument.member``, ``file.name`` or ``room.file.name`` is there."""
    above, _, last = dotted.rpartition(".")
    owner = ARGUMENTS.get(above, above.lower())
    return (
        any(name.lower().endswith(owner) and last in of_class for name, of_class in members().items())
        or any(name.endswith(f".{dotted}") for name in modules())
        or any(name.endswith(f".{above}") and last in names_in(path) for name, path in modules().items())
    )


def is_known(dotted: str) -> bool:
    """Say whether a docstring may name this: ours, the face's, the standard library's, or torch's."""
    first = dotted.partition(".")[0]
    if first in TORCHS or FILE_NAME.fullmatch(dotted) or dotted in KEYS:
        return True
    if first == "pp":
        return is_on_face(dotted)
    if first == "ppwork":
        return is_in_package(dotted, "")
    return is_name_of_ours(dotted) or (first in sys.stdlib_module_names and is_in_python(dotted))


def is_in_python(dotted: str) -> bool:
    try:
        pkgutil.resolve_name(dotted)
    except (ImportError, AttributeError):
        return False
    return True


def test_every_dotted_name_in_a_docstring_is_there():
    missing = [
        f"{name}: {dotted}"
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for dotted in IN_DOCSTRING.findall(node.value.value)
        if not is_known(dotted)
    ]
    assert missing == []


def test_each_argument_is_described_by_itself():
    """One sentence over two arguments is cut in two where a tool shows one of them."""
    cut = []
    for name, path in modules().items():
        for node in ast.walk(ast.parse(path.read_text())):
            text = ast.get_docstring(node) if isinstance(node, ast.FunctionDef | ast.ClassDef) else None
            for part in re.findall(r"^(?:Args|Attributes):\n((?:    .*\n?|\n)*)", text or "", re.MULTILINE):
                each = re.findall(r"^    (\w+): ((?:.|\n(?!    \w+: ))*)", part, re.MULTILINE)
                cut += [
                    f"{name}: {argument}"
                    for argument, said in each
                    if not said.rstrip().endswith(".") or re.match("(and|but|or) ", said)
                ]
    assert cut == []


def test_no_program_cites_a_paper_that_is_not_in_the_project():
    folders = [ROOT / name for name in ("ppwork", "tests", "benchmarks", "scripts")]
    cited = [
        f"{path.relative_to(ROOT)}: {words}"
        for path in (path for folder in folders for path in folder.rglob("*.py"))
        for words in ELSEWHERE.findall(path.read_text())
    ]
    assert cited == []


def test_every_file_that_a_page_names_is_there(text):
    here = re.sub(r"https?://\S+", "", text)  # another site's pages have folders of these names, too
    named = {path for path in PATH.findall(here) if not re.search(r"\b[A-Z]{2,}\b", path)}  # ROOM, THEME
    missing = sorted(path for path in named if not (ROOT / path).exists())
    assert missing == []


def test_every_module_that_a_page_names_is_there(text):
    missing = [
        f"ppwork{dotted}:{name}"
        for dotted, name in DOTTED.findall(text)
        if not is_in_package(f"ppwork{dotted}", name)
    ]
    assert missing == []


def test_every_name_of_the_face_that_a_page_uses_is_there(text):
    assert [f"pp{dotted}" for dotted in FACE.findall(text) if not is_on_face(dotted)] == []


def test_every_option_of_a_command_that_a_page_shows_is_there(text):
    missing = []
    for shown in (re.split("[#;]| -- ", "".join(parts))[0].split() for parts in COMMAND.findall(text)):
        command: Any = commands()
        while shown and hasattr(command, "commands"):
            assert shown[0] in command.commands, shown
            command = command.commands[shown.pop(0)]
        options = {name for each in command.params for name in each.opts + each.secondary_opts} | {"--help"}
        missing += [word for word in shown if word.startswith("--") and word.partition("=")[0] not in options]
    assert missing == []


def test_every_member_of_our_classes_that_a_page_names_is_there(text):
    missing = [
        f"{owner}.{name}"
        for owner, name in MEMBER.findall(text)
        if owner in members() and name not in members()[owner]
    ]
    assert missing == []


def test_the_list_above_the_glossary_has_every_word_in_order():
    page = (ROOT / "GLOSSARY.md").read_text()
    words = re.findall(r"^### (.+)$", page, re.MULTILINE)
    anchors = [(word, re.sub(r"[^\w -]", "", word.lower()).replace(" ", "-")) for word in words]
    listed = re.findall(r"\[([^]]+)\]\(#([^)]+)\)", page.partition("\n## ")[0])
    assert listed == sorted(anchors, key=lambda pair: pair[0].lower())


def test_the_tests_of_pages_can_fail():
    assert not is_in_package("ppwork.control", "sequential_loop")
    assert not is_in_package("ppwork.worker.loops", "sequential_loop")
    assert is_in_package("ppwork.worker.loops", "run_sequential")
    assert is_in_package("ppwork.protocol.states.TRANSITIONS", "")
    assert is_known("worker.loops.run_sequential")
    assert is_known("plan.mesh_size")
    assert is_known("queue.Full")
    for missing in ("worker.loops.sequential", "loops.sequential", "plan.order", "queue.Fuller", "pp.order"):
        assert not is_known(missing), missing
    assert "join" in members()["MeshPlane"]
    assert "order" not in members()["Plan"]
    with pytest.raises(AssertionError):
        test_every_option_of_a_command_that_a_page_shows_is_there("`ppwork run --order overlap`")
