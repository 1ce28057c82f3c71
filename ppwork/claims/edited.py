"""A claim's program as a whole file of plain torch.distributed, to be changed and run: ``pp.claims.edit``.

The programs of the catalogue are given a ``World`` by what runs them. Here the few lines that make such a
world stand in the file itself, so that it needs torch alone.
"""

from __future__ import annotations

import ast
import html
import importlib.util
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppwork.claims.catalogue import claim_of
from ppwork.claims.claim import Claim, Program
from ppwork.errors import PlanError

MARK = re.compile(r" *# (?:noqa|type: ignore).*$", re.MULTILINE)
"""For our own checks; the reader has none."""
OURS = {"folder", "init", "store", "timeout_s"}
"""Of a world: what a program uses that starts its group by itself, or has more files than one."""
WORLD = '''class World:
    """This rank; its notes are printed."""

    def __init__(self):
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self.backend, self.device = dist.get_backend(), torch.device("cpu")

    def note(self, **facts):
        print(*(f"{name}={value}" for name, value in facts.items()), flush=True)
'''
MEET = """
    def meet(self, name):
        store = dist.distributed_c10d._get_default_store()
        store.set(f"{name}/{self.rank}", "here")
        store.wait([f"{name}/{rank}" for rank in range(self.size)])
"""


@dataclass(frozen=True)
class Edited:
    """A program of a claim for the end of a cell: the text of its file."""

    claim_id: str
    ranks: int
    file: str
    text: str

    @property
    def cell(self) -> str:
        """The text of a cell that runs it."""
        return f"%%ranks {self.ranks} --file {self.file} --may-fail\n{self.text}"

    def __repr__(self) -> str:
        return self.cell

    def _repr_html_(self) -> str:
        return f'<pre style="text-align:left">{html.escape(self.cell)}</pre>'


def edit(claim_id: str, program: str = "") -> Edited:
    """Return a claim's program as a whole file; in a notebook it stands in a new cell below, ready to change.

    Args:
        claim_id: Such as ``C01``.
        program: The name of one of its programs; default: the first.

    Raises:
        PlanError: There is no such claim or program, or the program is no whole file by itself: it starts its
            group by itself, has a file of its own, is started anew for each run, or is for GPUs.
    """
    claim = claim_of(claim_id)
    name = program or next(iter(claim.programs))
    if name not in claim.programs:
        raise PlanError(
            f"Claim {claim.id} has no program {name!r}.", check_first=f"one of {', '.join(claim.programs)}"
        )
    chosen = claim.programs[name]
    module, _, function = chosen.path.partition(":")
    source = _source_of(module)
    parts = _parts(source, function)
    if _is_bound_to_us(claim, chosen, parts):
        raise PlanError(
            f"The program {name!r} of claim {claim.id} cannot be run by itself.",
            check_first=f"pp.claims.open_up(pp.claims.run({claim.id!r})), which shows it",
        )
    edited = Edited(
        claim.id, chosen.ranks, f"my_{claim.id.lower()}.py", _text(claim, chosen, function, parts)
    )
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    if shell is not None:
        shell.set_next_input(edited.cell)
    return edited


def _source_of(module: str) -> str:
    spec = importlib.util.find_spec(f"ppwork.claims.programs.{module}")
    assert spec is not None  # noqa: S101  a test holds every claim to a module that is there
    return Path(str(spec.origin)).read_text()


def _parts(source: str, function: str) -> dict[ast.stmt, str]:
    """Return the statements of a module that a function needs, itself included, with their text, in order."""
    body = ast.parse(source).body
    needed, names = set[ast.stmt](), {function}
    while True:
        found = {statement for statement in body if names & set(_bound(statement))} - needed
        if not found:
            break
        needed |= found
        names |= {node.id for one in found for node in ast.walk(one) if isinstance(node, ast.Name)}
    lines = source.splitlines()
    return {one: _lines(lines, one) for one in body if one in needed}


def _lines(lines: list[str], statement: ast.stmt) -> str:
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(decorator.lineno for decorator in decorators)])
    return MARK.sub("", "\n".join(lines[first - 1 : statement.end_lineno]))


def _bound(statement: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement of a module gives a value."""
    if isinstance(statement, ast.Import | ast.ImportFrom):
        for alias in statement.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(statement, ast.FunctionDef | ast.ClassDef):
        yield statement.name
    elif isinstance(statement, ast.Assign | ast.AnnAssign):
        for node in ast.walk(statement):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id


def _is_bound_to_us(claim: Claim, program: Program, parts: dict[ast.stmt, str]) -> bool:
    used = {used for one in parts for used in _used_of_the_world(one)}
    imports = [text for one, text in parts.items() if isinstance(one, ast.ImportFrom)]
    ours = any(text.startswith("from ppwork.") and "World" not in text for text in imports)
    return bool(
        not program.timeout_s
        or program.fresh
        or claim.gpus
        or "gloo" not in claim.backends
        or used & OURS
        or ours
    )


def _used_of_the_world(statement: ast.stmt) -> Iterator[str]:
    for node in ast.walk(statement):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "world":
            yield node.attr


def _text(claim: Claim, program: Program, function: str, parts: dict[ast.stmt, str]) -> str:
    imports = [text for one, text in parts.items() if isinstance(one, ast.Import | ast.ImportFrom)]
    imports = [text for text in imports if not text.startswith(("from ppwork.", "from __future__"))]
    plain = {"import datetime", "import torch", "import torch.distributed as dist", *imports}
    rest = [text for one, text in parts.items() if not isinstance(one, ast.Import | ast.ImportFrom)]
    meet = any("meet" in _used_of_the_world(one) for one in parts)
    variables: dict[str, Any] = dict(program.environment)
    sets = f"os.environ.update({variables!r})  # before torch reads them\n" if variables else ""
    level = "dist.set_debug_level_from_env()\n" if "TORCH_DISTRIBUTED_DEBUG" in variables else ""
    start = f'dist.init_process_group("gloo", timeout=datetime.timedelta(seconds={program.timeout_s:g}))'
    return "\n".join([
        f"# {claim.statement}",
        *(["import os", sets] if sets else []),
        *sorted(plain),
        "",
        "",
        WORLD + (MEET if meet else ""),
        "",
        "\n\n\n".join(rest),
        "",
        "",
        f"{level}{start}",
        f"{function}(World())",
        "dist.destroy_process_group()",
        "",
    ])  # fmt: skip
