"""Private names of torch and of Python that the package uses are those that a page lists."""

import ast
import re
from pathlib import Path

from checkout import ROOT

PAGE = (ROOT / "docs" / "decisions.md").read_text().partition("## Private parts of torch\n")[2]
FILES = [path for path in (ROOT / "ppwork").rglob("*.py") if "programs" not in path.parts]
"""All but the claims' programs: what those try is the claim."""
PUBLIC = {
    "_exit", "_asdict", "_replace", "_repr_html_", "_repr_mimebundle_", "_ipython_display_",
    "_render_traceback_", "_ppwork",
}  # fmt: skip
"""Of documented protocols, in spite of their names; and our mark on functions of others."""
NAMED = {"getattr", "hasattr", "setattr"}


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT / "ppwork").with_suffix("").parts)


def is_private(name: object) -> bool:
    return isinstance(name, str) and bool(re.match(r"_[a-z]", name)) and name not in PUBLIC


def used_by(tree: ast.AST) -> tuple[set[str], set[str]]:
    """Return the private names that a file reads or sets: on its own objects, and on others or by import."""
    own: set[object] = set()
    others: set[object] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name):
                own.add(name)
            case ast.Attribute(value=ast.Call(func=ast.Name(id="super")), attr=name):
                own.add(name)
            case ast.Attribute(attr=name):
                others.add(name)
            case ast.Call(func=ast.Name(id=function), args=[_, ast.Constant(value=name), *_]):
                others |= {name} if function in NAMED else set()
            case ast.ImportFrom(module=str(module), names=imported) if not module.startswith("ppwork"):
                others |= {*module.split("."), *(alias.name for alias in imported)}
    return set(filter(is_private, own)), set(filter(is_private, others))


def made_by(tree: ast.AST) -> set[str]:
    """Return the private names that a file defines: functions, fields and variables of ours."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def used_of_others(trees: dict[str, ast.AST]) -> dict[str, set[str]]:
    """Return the names that are not ours, each with the modules that use it.

    A class of ours may have its name from a base class in another file; on any other object a name is ours
    only where the same file makes it. So a function of ours hides no attribute of torch with its name.
    """
    ours = set().union(*map(made_by, trees.values()))
    found: dict[str, set[str]] = {}
    for module, tree in trees.items():
        own, others = used_by(tree)
        for name in (own - ours) | (others - made_by(tree)):
            found.setdefault(name, set()).add(module)
    return found


def in_backticks(text: str) -> set[str]:
    return set(re.findall(r"`([\w.]+)`", text))


def test_the_page_lists_what_the_code_uses_and_where():
    used = used_of_others({module_of(path): ast.parse(path.read_text()) for path in FILES})
    rows = [line.split("|")[1:3] for line in PAGE.splitlines() if line.startswith("| `")]
    listed = [(set(filter(is_private, in_backticks(names))), in_backticks(where)) for names, where in rows]
    for names, where in listed:
        assert set().union(*(used.pop(name, set()) for name in names)) == where, names
    # What is left is Python's and ipykernel's: a sentence below the table has those.
    below = PAGE.rpartition("\n| ")[2].partition("\n")[2]
    assert used.keys() == set(filter(is_private, in_backticks(below)))


def test_a_name_of_others_is_found_also_where_another_file_has_one_of_ours():
    trees = {
        "a": ast.parse("def _version(): ...\nclass A:\n    def __init__(self): self._kept = 1"),
        "b": ast.parse("tensor._version\ngetattr(store, '_port')\nself._kept\nself._theirs\nother._kept"),
        "c": ast.parse("from torch._dynamo import _config\nfrom ppwork.a import _version\n_version()"),
    }
    found = {"_version": {"b"}, "_port": {"b"}, "_theirs": {"b"}, "_kept": {"b"}}
    assert used_of_others(trees) == found | {"_dynamo": {"c"}, "_config": {"c"}}
