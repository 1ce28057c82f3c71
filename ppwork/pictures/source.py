"""Source code of the project beside a lesson's own: shown as it is installed."""

from __future__ import annotations

import ast
import importlib.util
from pathlib import Path

from ppwork.errors import PlanError

DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def source_of(path: str) -> str:
    """Return the text of a function or class, read from its file: nothing is imported.

    Args:
        path: ``module:name`` or ``module:Class.method``, such as ``ppwork.worker.loops:run_overlap``.

    Raises:
        PlanError: The path is not of that form, or there is no such module or name in it.
    """
    module_name, _, name = path.partition(":")
    text = _text_of(module_name) if name else ""
    if not text:
        raise PlanError(
            f"There is no source {path!r}.", check_first="module:name, as ppwork.worker.loops:run_overlap"
        )
    nodes: list[ast.stmt] = ast.parse(text).body
    for part in name.split("."):
        named = [node for node in nodes if isinstance(node, DEFINITIONS) and node.name == part]
        if not named:
            raise PlanError(
                f"The module {module_name} has no {name}.", check_first=f"the names in {module_name}"
            )
        nodes = named[0].body
    first = min([named[0].lineno, *(decorator.lineno for decorator in named[0].decorator_list)])
    return _to_the_left(text.splitlines()[first - 1 : named[0].end_lineno])


def lines_of(module_name: str, first: str, count: int) -> str:
    """Return a few lines of a module, where a whole function would hide what they say.

    Args:
        module_name: Such as ``ppwork.runtime.groups``; it is not imported.
        first: What the first of them, and no other line of the module, begins with.
        count: How many.

    Raises:
        PlanError: There is no such module, or not exactly one line that begins so.
    """
    lines = _text_of(module_name).splitlines()
    begin = [number for number, line in enumerate(lines) if line.lstrip().startswith(first)]
    if len(begin) != 1:
        raise PlanError(
            f"{len(begin)} lines of {module_name} begin with {first!r}.", check_first="a longer beginning"
        )
    return _to_the_left(lines[begin[0] : begin[0] + count])


def _text_of(module_name: str) -> str:
    """Return the file of a module, or nothing if there is none."""
    try:
        spec = importlib.util.find_spec(module_name) if module_name else None
    except (ImportError, ValueError):
        spec = None
    path = Path(spec.origin) if spec is not None and spec.origin is not None else None
    return path.read_text() if path is not None and path.is_file() else ""


def _to_the_left(lines: list[str]) -> str:
    margin = len(lines[0]) - len(lines[0].lstrip())
    return "\n".join(line[margin:] for line in lines)
