"""Docstrings are true where that can be tried: examples print what they say, and every name is somebody's."""

from __future__ import annotations

import ast
import builtins
import doctest
import importlib
import inspect
import re
from collections.abc import Iterator

import pytest
from checkout import ROOT, SUPPORT

TREES = {path: ast.parse(path.read_text()) for path in sorted((ROOT / "ppwork").rglob("*.py"))}
EXAMPLE = re.compile(r"^ *>>> ", re.MULTILINE)
WITH_EXAMPLES = [path for path in (*TREES, *sorted(SUPPORT.glob("*.py"))) if EXAMPLE.search(path.read_text())]
NAME = re.compile(r"``((?:[A-Z]+[a-z]|[a-z]+_)\w*)(?:\.(?!py`)\w+)*(?:\(\))?``")
"""A name in double backticks, ``CamelCase`` or ``snake_case``; of ``plan.some_field`` the first part."""
RAISES = re.compile(r"^Raises:\n(.*?)(?:^\S|\Z)", re.MULTILINE | re.DOTALL)
RAISED = re.compile(r"^    ([A-Z]\w+(?:, [A-Z]\w+)*):", re.MULTILINE)
OF_OTHERS = {
    "CalledProcessError": "in the logs of other people's programs",
    "DistBackendError": "torch's, which is known by its name where nothing imports torch",
    "ShdPnd": "a line of /proc/PID/status",
    "SigCgt": "a line of /proc/PID/status",
    "WxH": "how a size is written",
}
"""Names in docstrings that no code of ours has, and whose they are."""


def docstrings_of(tree: ast.AST) -> list[ast.Constant]:
    """Return every text that stands alone: in a module, a class or a function, or below a constant."""
    bodies = [body for node in ast.walk(tree) if isinstance(body := getattr(node, "body", None), list)]
    alone = [statement.value for body in bodies for statement in body if isinstance(statement, ast.Expr)]
    return [text for text in alone if isinstance(text, ast.Constant) and isinstance(text.value, str)]


def named_in(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield line and name: what docstrings have in double backticks, and the errors that they promise."""
    for docstring in docstrings_of(tree):
        for match in NAME.finditer(docstring.value):
            yield docstring.lineno + docstring.value.count("\n", 0, match.start()), match[1]
        for section in RAISES.findall(inspect.cleandoc(docstring.value)):
            for names in RAISED.findall(section):
                yield from ((docstring.lineno, name) for name in names.split(", "))


def had_by(tree: ast.AST) -> set[str]:
    """Return the names that a file's code has: defined, imported, or keys and options in its texts."""
    alone = set(map(id, docstrings_of(tree)))
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name) | ast.Attribute(attr=name):
                names.add(name)
            case ast.arg(arg=name) | ast.keyword(arg=str(name)) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.alias(name=name, asname=asname):
                names.update((asname or name).split("."))
            case ast.Constant(value=str(text)) if id(node) not in alone:
                names.update(re.findall(r"\b[a-z]+_\w*", text))
    return names


@pytest.fixture(scope="module")
def known() -> set[str]:
    modules = {name for path in TREES for name in (path.stem, path.parent.name)}
    return modules.union(dir(builtins), *map(had_by, TREES.values()))


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: str(path.relative_to(ROOT)))
def test_the_examples_of_a_module_print_what_they_say(path):
    name = path.stem if path.parent == SUPPORT else ".".join(path.relative_to(ROOT).with_suffix("").parts)
    failed, tried = doctest.testmod(importlib.import_module(name))
    assert failed == 0
    # Doctest does not see one below a decorator that hides its function: nobody would try it.
    assert tried == len(EXAMPLE.findall(path.read_text()))


def test_every_name_in_a_docstring_is_somebodys(known):
    stale = [
        f"{path.relative_to(ROOT)}:{line} {name}"
        for path, tree in TREES.items()
        for line, name in named_in(tree)
        if name not in known | OF_OTHERS.keys()
    ]
    assert stale == []


def test_the_names_of_others_stand_in_docstrings_and_are_not_ours(known):
    named = {name for tree in TREES.values() for _, name in named_in(tree)}
    assert OF_OTHERS.keys() <= named - known


def test_a_name_is_found_in_backticks_and_under_raises_with_its_line():
    tree = ast.parse('''"""Of ``Gone`` and ``Here.part``; ``module:Class`` and ``my_stages.py`` are forms."""

FIRST = 1
"""As ``old_module`` says,
and ``Lost()``."""

def function(given_name):
    """Do it.

    Raises:
        Here: Yes, it
            Goes: on.
        Left, Here: No.

    Returns:
        Something: else.
    """
    return {"a_key": Here}
''')
    assert sorted(named_in(tree)) == [
        (1, "Gone"), (1, "Here"), (4, "old_module"), (5, "Lost"), (8, "Here"), (8, "Here"), (8, "Left"),
    ]  # fmt: skip
    assert had_by(tree) == {"FIRST", "function", "given_name", "a_key"}
