"""Finds in a program's source what may keep ranks from the same calls: an ``if``, an early end, a loop."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator

from ppwork.diagnosis.source_numbers import program_of
from ppwork.diagnosis.stacks import PROGRAM, Frame

LOOPS = (ast.For, ast.AsyncFor, ast.While)
LEAVES = (ast.Continue, ast.Break, ast.Return)
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
CLAUSES = (ast.ExceptHandler, ast.match_case)
DECIDES = (*LOOPS, ast.If, ast.IfExp, ast.BoolOp, ast.comprehension, ast.Lambda)


def branch_of(call: Frame, other: Frame) -> int | None:
    """Return the line of the innermost ``if`` that decides whether a turn of a loop makes a call.

    That is an ``if`` around the call, or one before it that leaves the turn (``continue``; after a ``break``
    no rank is in the loop); not one that decides about the other line as well.

    Args:
        call: The call, in the function with the loop.
        other: Another line of the same loop.

    Returns:
        ``None``: there is no such loop or ``if``, or the source does not read, or is not that of the run.
    """
    path = _path_to(call)
    loops = [at for at, each in enumerate(path) if isinstance(each, LOOPS) and _has(each, other.line)]
    if not loops:
        return None
    inner = [each for each in path[loops[-1] + 1 :] if isinstance(each, ast.If)]
    around = [each for each in inner if _has(each, call.line) and not _calls_at(each.test, call.line)]
    leaving = [
        each
        for each in inner
        if isinstance(each.body[-1], ast.Continue) and not _has(each, call.line) and each.lineno > other.line
    ]
    decide = [each.lineno for each in (*around, *leaving) if not _has(each, other.line)]
    return max(decide, default=None)


def helpers_branch(call: Frame) -> int | None:
    """Return the line of the innermost ``if`` that decides whether a function makes a call, or none."""
    inner = [each for each in _in_function(call) if isinstance(each, ast.If) and call.function != PROGRAM]
    return max((each.lineno for each in inner if not _calls_at(each.test, call.line)), default=None)


def left_loop(call: Frame, behind: Frame) -> tuple[int | None, bool]:
    """Return the line of the loop around a call that a rank has left which stands behind it.

    Args:
        call: The call, in the function with the loop.
        behind: A later line of the same function.

    Returns:
        The line, of the innermost such loop; ``None``: there is none, or the source does not read. And
        whether the later line may be of the turn before: a loop is around both, or nobody knows.
    """
    path = _in_function(call)
    shared = not path or any(isinstance(each, LOOPS) and _has(each, behind.line) for each in path)
    return own_loop(call, behind.line), shared


def own_loop(call: Frame, other_line: int | None, *, for_ever: bool = True) -> int | None:
    """Return the line of the innermost loop of its function around a call, and not around another line.

    ``for_ever``: a ``while True``, which makes as many turns as its body lets it, counts as well.
    """
    loops = [each for each in _in_function(call) if isinstance(each, LOOPS)]
    loops = [each for each in loops if for_ever or not _is_for_ever(each)]
    apart = (each for each in reversed(loops) if other_line is None or not _has(each, other_line))
    return next((each.lineno for each in apart), None)


def _is_for_ever(loop: ast.stmt) -> bool:
    return isinstance(loop, ast.While) and isinstance(loop.test, ast.Constant) and bool(loop.test.value)


def always_made(call: Frame, behind: Frame | None = None) -> bool:
    """Say whether nothing decides about a call: whoever comes into its function makes it, once.

    Args:
        call: The call.
        behind: A later line of the same function: then of a turn of the innermost loop around both, and
            ``False`` without one.

    Returns:
        ``False`` as well if the source does not read.
    """
    path = _in_function(call)
    if behind is not None:
        shared = [at for at, each in enumerate(path) if isinstance(each, LOOPS) and _has(each, behind.line)]
        path = path[shared[-1] + 1 :] if shared else []
        path = [each for each in path if _has(each, call.line)]  # who is behind it has not left before it
    return len(path) == 1 and not any(isinstance(each, DECIDES) for each in ast.walk(path[0]))


def _in_function(call: Frame) -> list[ast.stmt]:
    """Return what is around a call's line within its function, as ``_statements_above``."""
    path = _path_to(call)
    start = max((at for at, each in enumerate(path) if isinstance(each, FUNCTIONS)), default=-1)
    return path[start + 1 :]


def early_ends(file: str, line: int) -> list[int]:
    """Return the lines on which a turn of the loop at a line may end early.

    Each ``continue``, or else each ``except`` that goes on; none if the source has no such loop, or does not
    read.
    """
    if (program := program_of(file)) is None:
        return []
    loops = [each for each in ast.walk(program.tree) if isinstance(each, LOOPS) and each.lineno == line]
    inside = [*_of_the_turn(loops[0].body)] if loops else []
    ends = [each.lineno for each in inside if isinstance(each, ast.Continue)]
    handlers = [each for each in inside if isinstance(each, ast.ExceptHandler)]
    return ends or [each.lineno for each in handlers if not isinstance(each.body[-1], (ast.Raise, *LEAVES))]


def _path_to(call: Frame) -> list[ast.stmt]:
    """Return ``_statements_above`` of a call's line; empty: the source does not read, or has changed."""
    if (program := program_of(call.file)) is None:
        return []
    line = "".join(program.lines[call.line - 1 : call.line]).strip()
    return [] if call.text and call.text.strip() != line else _statements_above(program.tree, call.line)


def _of_the_turn(block: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Yield what is in statements, without inner functions and the bodies of inner loops."""
    for each in block:
        yield each
        if not isinstance(each, (*LOOPS, *FUNCTIONS)):
            yield from _of_the_turn(ast.iter_child_nodes(each))


def _calls_at(test: ast.expr, line: int) -> bool:
    """Say whether a condition may make a call on a line: of ``if x: y()`` the line is that of both."""
    return any(isinstance(each, ast.Call) and _has(each, line) for each in ast.walk(test))


def _has(node: ast.stmt | ast.expr, line: int) -> bool:
    return node.lineno <= line <= (node.end_lineno or node.lineno)


def _statements_above(node: ast.AST, line: int) -> list[ast.stmt]:
    """Return the statements around a line, the outermost first, and each ``if`` before it that may leave."""
    for _, block in ast.iter_fields(node):
        for at, each in enumerate(block if isinstance(block, list) else []):
            if isinstance(each, ast.stmt) and _has(each, line):
                leaving = [one for one in block[:at] if isinstance(one, ast.If) and _leaves(one)]
                return [*leaving, each, *_statements_above(each, line)]
            inside = _statements_above(each, line) if isinstance(each, CLAUSES) else []
            if inside:
                return inside
    return []


def _leaves(branch: ast.If) -> bool:
    return isinstance(branch.body[-1], LEAVES)
