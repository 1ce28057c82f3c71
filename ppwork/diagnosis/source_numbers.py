"""Whole numbers that expressions of a program stand for on one rank, read from its source.

A traceback has lines and no values. What is counted from the rank is known all the same, if the program is
still where it was: ``after = (rank + 1) % world_size`` names one rank, also where it is passed to a function.
A name that is given in two ways is not known.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import zip_longest
from operator import add, floordiv, mod, mul, sub
from pathlib import Path
from typing import NamedTuple

from ppwork.diagnosis.call_texts import argument, calls_in
from ppwork.diagnosis.stacks import Frame

_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: add, ast.Sub: sub, ast.Mult: mul, ast.Mod: mod, ast.FloorDiv: floordiv,
}  # fmt: skip
_LARGEST = 1 << 20
"""Bytes of a program that is read, and the largest number that is counted with."""
_Given = tuple[ast.expr | None, ast.FunctionDef | None]
_DEEPEST = 8
"""Steps from name to name."""
_PEERS = {
    "send": (1, "dst"), "isend": (1, "dst"), "recv": (1, "src"), "irecv": (1, "src"), "P2POp": (2, "peer"),
}  # fmt: skip
"""Calls that make a message, and the place and the name of its peer among their arguments."""
_BEGIN = ("isend", "irecv", "P2POp")


class Numbers:
    """Numbers of one rank: what it is, how many there are, and what its program counts from these.

    Args:
        rank: The rank.
        world_size: Number of ranks.
        frames: Calls that led to its line, the innermost last; parameters have what the caller's line passes.
    """

    def __init__(self, rank: int, world_size: int, frames: Sequence[Frame] = ()) -> None:
        self._known = {"rank": rank, "world_size": world_size}
        self._caller = Numbers(rank, world_size, frames[:-1]) if frames[1:] else None
        self._call = frames[-2].text if frames[1:] else ""
        self._program = _program_around(frames[-1]) if frames else None
        self._function = self._program.function_at(frames[-1].line) if self._program is not None else None

    def of(self, value: ast.expr | None) -> int | None:
        """Return the number that an expression in the line stands for; ``None``: not known."""
        return self._of(value, self._function, 0)

    def _of(self, value: ast.expr | None, function: ast.FunctionDef | None, depth: int) -> int | None:
        match value:
            case ast.Constant(value=int() as number) if not isinstance(number, bool):
                return number
            case ast.Name() | ast.Attribute() if depth < _DEEPEST:
                return self._named(ast.unparse(value), function, depth)
            case ast.Call(
                func=ast.Attribute(attr="get_rank" | "get_world_size" as name), args=[], keywords=[]
            ):
                return self._known[name.removeprefix("get_")]
            case ast.Call(func=ast.Name(id="int"), args=[inner], keywords=[]):
                return self._of(inner, function, depth)
            case ast.Subscript(value=ast.Attribute(attr="environ"), slice=ast.Constant(value=str() as name)):
                return self._known.get(name.lower())
            case ast.BinOp(left=left, op=op, right=right) if (apply := _OPERATORS.get(type(op))) is not None:
                one, other = self._of(left, function, depth), self._of(right, function, depth)
                if one is None or other is None or max(abs(one), abs(other)) > _LARGEST:
                    return None
                return apply(one, other) if other or apply not in (mod, floordiv) else None
        return None

    def _named(self, name: str, function: ast.FunctionDef | None, depth: int) -> int | None:
        """Return the number of a name: the same wherever it is given, or that of a usual name."""
        if self._program is None:
            return self._known.get(name)
        scope = self._program.scope_of(name, function)
        given = self._program.given.get((scope, name), ())
        numbers = {self._of(value, place, depth + 1) for value, place in given}
        if scope is not None and name in (parameters := [each.arg for each in scope.args.args]):
            is_here = scope is self._function
            numbers.add(self._passed(scope, parameters.index(name), name) if is_here else None)
        elif not numbers:
            return self._known.get(name)
        return numbers.pop() if len(numbers) == 1 else None

    def _passed(self, function: ast.FunctionDef, place: int, name: str) -> int | None:
        """Return the number that the caller's line passes as a parameter."""
        calls = list(calls_in(self._call, function.name))
        if self._caller is None or len(calls) != 1:
            return None
        is_method = function.args.args[0].arg == "self"
        return self._caller.of(argument(calls[0], place - is_method, name))


def peer_in_line(text: str, call: str, numbers: Numbers) -> int | None:
    """Return the rank that a line names as the peer of its message; ``None``: not known.

    >>> numbers = Numbers(rank=1, world_size=3)
    >>> peer_in_line("if rank == 0: dist.send(x, 1); dist.recv(x, (rank + 2) % world_size)", "recv", numbers)
    0
    >>> peer_in_line("dist.recv(x, src=before)", "recv", numbers)
    """
    begun = _BEGIN if call == "wait" else (call,) if call in _PEERS else ()
    peers = {numbers.of(argument(node, *_PEERS[name])) for name in begun for node in calls_in(text, name)}
    return peers.pop() if len(peers) == 1 else None


def tag_in_line(text: str, call: str, numbers: Numbers) -> int | None:
    """Return the tag of a line's message, 0 if it gives none; ``None``: not known."""
    given = [argument(node, 3, "tag") for node in calls_in(text, call)]
    tags = {0 if tag is None else numbers.of(tag) for tag in given}
    return tags.pop() if len(tags) == 1 else None


class Half(NamedTuple):
    """A line of a program that makes half of a message."""

    call: str
    """``send``, ``isend``, ``recv`` or ``irecv``."""
    at: str
    """``file:line``."""
    is_let_go: bool
    """Nobody keeps the handle that the call returns."""

    def is_before(self, line: Frame) -> bool:
        """Say whether it stands in the same file, above this line."""
        file, _, number = self.at.rpartition(":")
        return file == line.file and int(number) < line.line


def halves_with(frame: Frame, rank: int, world_size: int, peer: int) -> list[Half]:
    """Return the halves of messages in a line's program that name this peer if this rank comes to them.

    Whether it does is not looked at: no branch of the program is followed.
    """
    program = _program_around(frame)
    found = []
    for name, node, is_let_go in program.messages if program is not None else ():
        line = Frame(frame.file, node.lineno, "", program.lines[node.lineno - 1] if program else "")
        if Numbers(rank, world_size, [line]).of(argument(node, *_PEERS[name])) == peer:
            found.append(Half(name, line.at, is_let_go))
    return found


class _Program(ast.NodeVisitor):
    """Functions of a program, and what each gives to its names, in the order of its lines.

    Attributes:
        lines: Its source.
        messages: Its calls that make half of a message, and if nobody keeps what each returns.
        tree: The whole of it.
        given: Expressions (``None``: something else) by function (``None``: the program) and name, each
            with the function where it stands. Attributes count for the whole program.
    """

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.given: dict[tuple[ast.FunctionDef | None, str], list[_Given]] = {}
        self.messages: list[tuple[str, ast.Call, bool]] = []
        self._inside: dict[ast.FunctionDef, ast.FunctionDef | None] = {}
        self._scope: ast.FunctionDef | None = None
        self._globals: set[str] = set()
        self._alone: ast.expr | None = None
        self.tree = ast.parse(text)
        self.visit(self.tree)

    def function_at(self, line: int) -> ast.FunctionDef | None:
        """Return the innermost function that has a line."""
        around = [each for each in self._inside if each.lineno <= line <= (each.end_lineno or 0)]
        return max(around, key=lambda each: each.lineno, default=None)

    def scope_of(self, name: str, function: ast.FunctionDef | None) -> ast.FunctionDef | None:
        """Return the function, this one or one around it, that has a name as its own; else the program."""
        while function is not None and "." not in name:
            if (function, name) in self.given or name in [each.arg for each in function.args.args]:
                return function
            function = self._inside[function]
        return None

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        """Visit what is inside it as its own."""
        self._inside[node] = around = self._scope
        before, self._scope = self._globals, node
        self._globals = {
            name for part in ast.walk(node) if isinstance(part, ast.Global) for name in part.names
        }
        self.generic_visit(node)
        self._scope, self._globals = around, before

    def generic_visit(self, node: ast.AST) -> None:
        """Note what a part of the program gives to names, and go on inside it."""
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._give(target, node.value)
        elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
            self._give(node.target, node.value)
        elif isinstance(node, ast.AugAssign | ast.For | ast.comprehension):
            self._give(node.target, None)
        elif isinstance(node, ast.Expr):
            self._alone = node.value
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func).rpartition(".")[2]
            if name in _PEERS and name != "P2POp":
                self.messages.append((name, node, name in _BEGIN and node is self._alone))
        super().generic_visit(node)

    def _give(self, target: ast.expr, value: ast.expr | None) -> None:
        if isinstance(target, ast.Tuple | ast.List):
            values = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for each, its in zip_longest(target.elts, values if len(values) == len(target.elts) else []):
                self._give(each, its)
        else:
            name = ast.unparse(target)
            scope = self._scope if isinstance(target, ast.Name) and name not in self._globals else None
            self.given.setdefault((scope, name), []).append((value, self._scope))


def _program_around(frame: Frame) -> _Program | None:
    """Return the program of a line; ``None``: it is not there, or has changed since."""
    program = program_of(frame.file) if frame.text else None
    is_same = program is not None and [frame.text.strip()] == [
        line.strip() for line in program.lines[frame.line - 1 : frame.line]
    ]
    return program if is_same else None


@lru_cache(maxsize=16)
def program_of(file: str) -> _Program | None:
    """Return the program in a file; ``None``: it is not there, or is too large or no Python."""
    path = Path(file)
    try:
        if path.suffix == ".py" and path.is_file() and path.stat().st_size <= _LARGEST:
            return _Program(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        pass
    return None
