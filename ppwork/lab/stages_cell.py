"""``%%stages``: the stages of a cell, in a file that ranks import, after ``%load_ext ppwork``.

Ranks are processes of their own and have nothing of the notebook. So the cell is not run here, it is read:
what it would lack in a rank is refused before anything is written. The launch checks the stages as always.
"""

from __future__ import annotations

import ast
import builtins
import importlib.util
import symtable
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ppwork.errors import PlanError, listed
from ppwork.lab.magic import LineParser, give, identifier, write_cell
from ppwork.stage import StageKind

USAGE = "%%stages [NAME.py] [--stage0 CLASS] [--stage1 CLASS] [--as NAME]"
OF_A_MODULE = {"__file__", "__name__", "__doc__", "__annotations__", "__builtins__"}
OF_A_NOTEBOOK = {"display", "get_ipython"}
"""Names that IPython puts among Python's own."""


def stages(line: str, cell: str) -> None:
    """Write a cell with stages to a file, and give the notebook their import paths.

    ``--as NAME`` (``stages``) is the name that gets them: ``pp.launch(pp.Plan(**stages, chunks=8))``.
    ``--stage0`` and ``--stage1`` choose where the cell has more than one of a kind.

    Raises:
        PlanError: The cell does not read as a module, uses names that it does not define, or has no stage or
            more than one of a kind; or the file's name is no module's, or that of another module, or of a
            file that no cell wrote. Nothing was written.
    """
    parser = _parser()
    options = parser.parse_args(parser.words(line))
    _check_name(options.file)
    tree = _module_of(cell, options.file)
    _check_names_used(cell, tree, options.file)
    required = {"stage0": StageKind.STAGE0.required, "stage1": StageKind.GENERATOR.required}
    found = {
        kind: f"{options.file.stem}:{name}"
        for kind, methods in required.items()
        if (name := _chosen(tree, kind, methods, getattr(options, kind))) is not None
    }
    if not found:
        raise PlanError(
            "The cell has no stage.",
            check_first=f"a class with {listed(required['stage0'])} is a stage 0, one with step a stage 1",
        )
    write_cell(options.file, cell)
    give(options.name, found)
    print(f"{options.name} = {found}")  # noqa: T201  the cell's output


def _check_name(file: Path) -> None:
    if file.name != str(file) or file.suffix != ".py" or not file.stem.isidentifier():
        raise PlanError(
            f"The file of the stages was to be {file}; ranks import it by its name from the working folder.",
            check_first="a name such as my_stages.py",
        )
    spec = importlib.util.find_spec(file.stem)
    if spec is not None and (spec.origin is None or Path(spec.origin) != file.resolve()):
        raise PlanError(
            f"The file of the stages was to be {file}, but there is a module {file.stem} already.",
            check_first=f"another name than that of {spec.origin}",
        )


def _module_of(cell: str, file: Path) -> ast.Module:
    try:
        return ast.parse(cell, str(file))
    except SyntaxError as error:
        text = (error.text or "").strip()
        raise PlanError(
            f"The cell is no module: {error.msg} in its line {error.lineno}: {text}",
            check_first="ranks read it as a file of Python, without the notebook's ! and %"
            if text.startswith(("!", "%"))
            else "that line",
        ) from None


def _check_names_used(cell: str, tree: ast.Module, file: Path) -> None:
    """Refuse names that the cell reads and neither defines nor imports."""
    if any(isinstance(node, ast.ImportFrom) and node.names[0].name == "*" for node in ast.walk(tree)):
        return  # nobody knows what it has
    top = symtable.symtable(cell, str(file), "exec")
    inner = [symbol for table in _tables(top) for symbol in table.get_symbols() if symbol.is_global()]
    bound = {s.get_name() for s in top.get_symbols() if s.is_assigned() or s.is_imported()}
    bound |= {s.get_name() for s in inner if s.is_declared_global() and s.is_assigned()}
    read = {s.get_name() for s in (*inner, *top.get_symbols()) if s.is_referenced()}
    missing = read - bound - (set(vars(builtins)) - OF_A_NOTEBOOK) - OF_A_MODULE
    lines = {
        node.id: node.lineno
        for node in reversed(list(ast.walk(tree)))
        if isinstance(node, ast.Name) and node.id in missing
    }
    if lines:
        places = [f"{name} (line {line})" for name, line in sorted(lines.items(), key=lambda item: item[1])]
        raise PlanError(
            f"The cell reads {listed(places)}, which it does not define: ranks have nothing of the notebook.",
            check_first="define or import it in this cell; a number goes with Plan(options=...)",
        )


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    for child in table.get_children():
        yield child
        yield from _tables(child)


def _chosen(tree: ast.Module, kind: str, methods: tuple[str, ...], asked: str | None) -> str | None:
    """Return the class of this kind; of a class of another file only its launch can say what it has."""
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    if asked is not None:
        if asked not in classes:
            names = listed(classes) or "there is none"
            raise PlanError(f"The cell has no class {asked}.", check_first=f"--{kind}: {names}")
        return asked
    fitting = [name for name in classes if set(methods) <= _methods_of(name, classes)]
    if len(fitting) > 1:
        raise PlanError(
            f"The cell has {len(fitting)} classes for {kind}: {listed(fitting)}.",
            check_first=f"%%stages ... --{kind} {fitting[-1]}",
        )
    return fitting[0] if fitting else None


def _methods_of(name: str, classes: dict[str, ast.ClassDef]) -> set[str]:
    node = classes.get(name)
    if node is None:
        return set()
    own = {part.name for part in node.body if isinstance(part, ast.FunctionDef)}
    others = {key: value for key, value in classes.items() if key != name}  # no circle
    return own.union(*(_methods_of(base.id, others) for base in node.bases if isinstance(base, ast.Name)))


def _parser() -> LineParser:
    parser = LineParser(prog="%%stages", usage=USAGE, add_help=False, allow_abbrev=False)
    parser.add_argument("file", type=Path, nargs="?", default=Path("my_stages.py"))
    arguments: dict[str, Any] = {"type": identifier}
    parser.add_argument("--stage0", **arguments)
    parser.add_argument("--stage1", **arguments)
    parser.add_argument("--as", dest="name", default="stages", **arguments)
    return parser
