"""Private names of torch and of Python that the package uses are those that a page lists."""

import ast
import re

from checkout import ROOT

PAGE = (ROOT / "docs" / "decisions.md").read_text().partition("## Private parts of torch\n")[2]
FILES = [path for path in (ROOT / "ppwork").rglob("*.py") if "programs" not in path.parts]
"""All but the claims' programs: what those try is the claim."""
PUBLIC = {"_exit", "_asdict", "_replace", "_repr_html_", "_ipython_display_", "_render_traceback_", "_ppwork"}
"""Of documented protocols, in spite of their names; and our mark on functions of others."""
NAMED = {"getattr", "hasattr", "setattr"}


def is_private(name: object) -> bool:
    return isinstance(name, str) and bool(re.match(r"_[a-z]", name)) and name not in PUBLIC


def used_by(tree: ast.AST) -> set[str]:
    """Return the private names that a file reads or sets on an object, or imports."""
    names: set[object] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr=name):
                names.add(name)
            case ast.Call(func=ast.Name(id=function), args=[_, ast.Constant(value=name), *_]):
                names |= {name} if function in NAMED else set()
            case ast.ImportFrom(module=str(module), names=imported) if not module.startswith("ppwork"):
                names |= {*module.split("."), *(alias.name for alias in imported)}
    return {name for name in names if is_private(name)}


def made_by(tree: ast.AST) -> set[str]:
    """Return the private names that a file defines: functions, fields and variables of ours."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls" | "wrapper"), attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def test_the_page_lists_what_the_code_uses():
    trees = [ast.parse(path.read_text()) for path in FILES]
    theirs = set().union(*map(used_by, trees)) - set().union(*map(made_by, trees))
    assert "_rank_not_in_group" in theirs
    listed = set(re.findall(r"`(_\w+)`", PAGE))
    assert theirs - listed == set()
    code = "\n".join(path.read_text() for path in FILES)
    assert [name for name in listed if name not in code] == []
