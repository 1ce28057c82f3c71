"""The contract of a stage, checked at its edge: what its methods are given, and what they must return.

A returned value that breaks the contract is refused at once, with file and line of the method, and not where
it causes trouble later. The transport refuses tensors that cannot travel; its errors get file and line, too.
"""

from __future__ import annotations

import ast
import dis
import inspect
import linecache
import re
import textwrap
import traceback
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import is_dataclass
from functools import lru_cache
from itertools import pairwise
from types import CodeType
from typing import Any, NoReturn

import msgspec
import torch

from ppwork.errors import LocalProtocolError, StageError
from ppwork.protocol.envelope import CONTEXT_PREFIX, MAX_STEPS
from ppwork.records.spans import FIGURES
from ppwork.runtime.tensors import dtype_name
from ppwork.stage import Chunk, Emission, Pause, Result, Tensors
from ppwork.worker.user_lines import as_written

RETURNS = ("RETURN_VALUE", "RETURN_CONST")
MOST_LINES = 6
"""Most returns that an error lists; if there are more, it says how many, and between which lines."""
NO_CHUNK = NONE, NOT_YET = "None", Pause.NOT_YET.name
"""Literals that a ``return`` may have; such a line cannot have returned another value."""
ANY = "*"
"""In place of a dtype or a size that was not the same in all chunks."""


def name_what_came(error: KeyError, **came: Collection[str]) -> None:
    """Add the names of what came to an error that asked for another name.

    Args:
        error: Raised by the user's code.
        came: Names by what has them, such as ``tensors``; told are those that the error's line looks into.
    """
    if not error.args or not isinstance(key := error.args[0], str) or error.__traceback__ is None:
        return
    frame, number = [*traceback.walk_tb(error.__traceback__)][-1]
    words = re.findall(r"[A-Za-z_]\w*", linecache.getline(frame.f_code.co_filename, number))
    held = [{*v} for word in words if isinstance(v := frame.f_locals.get(word), Mapping) and v]
    for what, names in came.items():
        if key not in names and (what in words or {*names} in held):
            none = "none (a stale result, `good` false, has none)" if what == "tensors" else "none"
            named = ", ".join(map(repr, names)) or none
            error.add_note(f"The {what.replace('_', ' ')} that came: {named}")


class Kinds:
    """Names, dtypes and shapes of the tensors that came with the last chunks.

    User code that fails says what it cannot do with a tensor, and not that no tensor was such a one before.
    """

    def __init__(self) -> None:
        self._last: deque[dict[str, tuple[Any, ...]]] = deque(maxlen=8)
        """By name: dtype and sizes."""

    def add(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Take a chunk's tensors; context frames come with some chunks only and do not count."""
        own = {name: each for name, each in tensors.items() if not name.startswith(CONTEXT_PREFIX)}
        self._last.append({name: (dtype_name(each.dtype), *each.shape) for name, each in own.items()})

    def change(self, whose: str = "this chunk") -> list[str]:
        """Return a line if the last chunk's lack what those of all chunks before it had in common."""
        if len(self._last) < 2:
            return []
        *before, now = self._last
        names = {name: None for kinds in self._last for name in kinds}
        common = {name: _common([kinds.get(name, ()) for kinds in before]) for name in names}
        odd = [name for name in names if not _has(now.get(name, ()), common[name])]
        came = ", ".join(f"{name!r} {_worded(now[name])}" for name in odd if name in now)
        usual = ", ".join(f"{name!r} {_worded(common[name])}" for name in odd if common[name])
        line = f"{whose} came with {came or 'less'}; those before it with {usual or 'no such name'}"
        return [line] if odd else []


def _common(kinds: list[tuple[Any, ...]]) -> tuple[Any, ...]:
    """Return dtype and sizes that are the same in all, ``ANY`` for each other; ``(ANY,)``: nothing is."""
    if len({len(kind) for kind in kinds}) > 1:
        return (ANY,)
    return tuple(parts[0] if len({*parts}) == 1 else ANY for parts in zip(*kinds, strict=True))


def _has(kind: tuple[Any, ...], common: tuple[Any, ...]) -> bool:
    return common == (ANY,) or (
        len(kind) == len(common) and all(each in (ANY, mine) for each, mine in zip(common, kind, strict=True))
    )


def _worded(kind: tuple[Any, ...]) -> str:
    return f"{kind[0]}[{', '.join(map(str, kind[1:]))}]"


def optional(stage: object, name: str) -> Callable[..., Any]:
    """Return an optional method of a stage, or one that does nothing if the stage lacks it."""
    return getattr(stage, name, _nothing)


def wanted(method: Callable[..., Any], **offered: Any) -> dict[str, Any]:  # noqa: ANN401  plain data
    """Return, as keywords, the offered values for which the method has a parameter."""
    names = _parameters_of(getattr(method, "__func__", method))
    return {name: value for name, value in offered.items() if name in names}


def chunk_of(stage: object, returned: object) -> Chunk | Pause | None:
    """Return what ``encode`` returned; tensors become a chunk.

    Raises:
        StageError: ``encode`` must not return such a value (rank 0).
    """
    if returned is None or isinstance(returned, Pause):
        return returned
    chunk = returned if isinstance(returned, Chunk) else Chunk(tensors_of(stage, "encode", returned))
    tensors_of(stage, "encode", chunk.tensors)
    _metadata_of(stage, "encode", chunk.metadata)
    for name, given in {"hard_cut": chunk.hard_cut, "flush": chunk.flush}.items():
        if not isinstance(given, bool):
            _refuse(stage, "encode", f"True or False as a chunk's {name}", repr(given))
    steps = chunk.steps
    if steps is not None and (type(steps) is not int or not 1 <= steps <= MAX_STEPS):
        _refuse(stage, "encode", f"1 to {MAX_STEPS} as a chunk's steps, or None", repr(steps))
    return chunk


def why_ended(stage: object, chunk_index: int) -> str:
    """Return a question about a stream that ``encode`` ended by ``None``; empty if only a ``return`` can.

    A forgotten ``return`` gives ``None``, too: this asks at chunk 0, and if there is a way through without.
    """
    function = _function_of(stage, "encode")
    lines = _lines_without_return(function)
    asked = f"encode returned None for chunk {chunk_index}, which ends the stream: a forgotten `return`?"
    if not lines:
        return asked if chunk_index == 0 else ""
    place = f"{as_written(function.__code__.co_filename)}:{' or '.join(map(str, lines[:MOST_LINES]))}"
    return f"{asked} Below {place} there is none; an end that is meant is a `return None`"


def result_of_step(stage: object, returned: object) -> Result:
    """Return what ``step`` returned; tensors become a result.

    Raises:
        StageError: ``step`` must not return such a value (the mesh rank that ran it).
    """
    result = returned if isinstance(returned, Result) else Result(tensors_of(stage, "step", returned))
    tensors_of(stage, "step", result.tensors)
    _metadata_of(stage, "step", result.metadata)
    return result


def tensors_of(stage: object, method: str, returned: object) -> Tensors:
    """Return a method's return value, which must be a mapping by name; preflight checks that it has tensors.

    Raises:
        StageError: It is not such a mapping (the rank that ran the method).
    """
    if not isinstance(returned, Mapping):
        _refuse(stage, method, "tensors by name", f"a {type(returned).__name__}", returned)
    for name in returned:
        if not isinstance(name, str):
            _refuse(stage, method, "tensors by name", f"a tensor by the name {name!r}")
    return returned


NOTHING = Emission(torch.empty(0))
"""What a ``decode`` that returned ``None`` has emitted."""


def emission_of(stage: object, returned: object, *, verify: bool) -> Emission:
    """Return what ``decode`` returned; ``None``, which emits nothing, becomes ``NOTHING``.

    Raises:
        StageError: It is no ``Emission`` though ``verify`` needs one, or a metric is not a number or has a
            name that ppwork uses (rank 0).
    """
    if returned is None and not verify:
        return NOTHING
    if not isinstance(returned, Emission):
        _refuse(stage, "decode", "an Emission", f"a {type(returned).__name__}", returned)
    for name, figure in returned.metrics.items():
        if name in FIGURES:
            _refuse(stage, "decode", "metrics under names of their own", repr(name))
        try:
            float(figure)
        except (TypeError, ValueError):
            _refuse(stage, "decode", "numbers as metrics", f"{name!r}: {figure!r}")
    return returned


def figures_of(stage: object, returned: object) -> dict[str, object]:
    """Return what ``finish`` returned.

    Raises:
        StageError: It is not a mapping from text to JSON types (rank 0).
    """
    if returned is None:
        return {}
    if not isinstance(returned, Mapping):
        _refuse(stage, "finish", "figures by name", f"a {type(returned).__name__}", returned)
    for name, figure in returned.items():
        if not isinstance(name, str):
            _refuse(stage, "finish", "figures by name", f"one by the name {name!r}")
        try:
            msgspec.json.encode(figure)
        except (TypeError, ValueError):
            _refuse(stage, "finish", "what JSON can carry", f"{name!r}: a {type(figure).__name__}")
    return dict(returned)


@contextmanager
def returned_by(stage: object, method: str) -> Iterator[None]:
    """Send a method's return value: if the transport refuses it, the error names the method, file and line.

    Raises:
        LocalProtocolError: The body raised it (the rank that ran the method).
    """
    try:
        yield
    except LocalProtocolError as error:
        words, error.source = _return_of(stage, method)
        error.check_first = "; ".join(filter(None, [error.check_first, words]))
        raise


def _nothing(*_: object) -> dict[str, Any]:
    return {}


def _metadata_of(stage: object, method: str, metadata: object) -> None:
    # The wire checks the content: it knows what can travel.
    if not isinstance(metadata, Mapping):
        kind = type(metadata).__name__
        given = f"a dataclass {kind}, which `dataclasses.asdict` makes a dict"
        _refuse(stage, method, "metadata by name", given if is_dataclass(metadata) else f"a {kind}")


@lru_cache
def _parameters_of(method: Callable[..., Any]) -> frozenset[str]:
    return frozenset(inspect.signature(method).parameters)


def _refuse(stage: object, method: str, need: str, returned: str, value: object = ...) -> NoReturn:
    words, source = _return_of(stage, method, value)
    error = StageError(f"The stage's {method} must return {need}; it returned {returned}.", check_first=words)
    error.source = source
    raise error


def _function_of(stage: object, method: str) -> Any:  # noqa: ANN401  whatever can be called
    return inspect.unwrap(getattr(type(stage), method, getattr(stage, method)))


def _return_of(stage: object, method: str, value: object = ...) -> tuple[str, str]:
    """Say which lines of a method may have returned a value; ``...``: a value not in ``NO_CHUNK``.

    Returns:
        The words, and ``file:line`` of that line; if it may be one of several, of the method.
    """
    code = getattr(_function_of(stage, method), "__code__", None)
    if code is None:
        return f"the `return` of {type(stage).__name__}.{method}", ""
    lines = _lines_of_return(code, NONE if value is None else NOT_YET if isinstance(value, Pause) else "")
    places = " or ".join(map(str, lines or [code.co_firstlineno]))
    name, file = f"{type(stage).__name__}.{method}", as_written(code.co_filename)
    words = f"the `return` of {name}, {file}:{places}"
    if len(lines) > MOST_LINES:
        words = f"one of the {len(lines)} `return`s of {name}, {file}, lines {lines[0]} to {lines[-1]}: "
        words += "which one is not known"
    return words, f"{code.co_filename}:{lines[0] if len(lines) == 1 else code.co_firstlineno}"


def site_of_return(stage: object, method: str) -> str:
    """Return the lines at which a method may return, in the form of ``CollectiveCall.site``, or nothing."""
    code = getattr(_function_of(stage, method), "__code__", None)
    if code is None or not (lines := _lines_of_return(code)):
        return ""
    places = " or ".join(map(str, lines[:MOST_LINES])) + (" or later" if lines[MOST_LINES:] else "")
    return f"{as_written(code.co_filename)}:{places}: a `return` of {type(stage).__name__}.{method}"


def _lines_of_return(code: CodeType, literal: str = "") -> list[int]:
    """Return the lines that return a value, or this word of ``NO_CHUNK``."""
    steps = [*dis.get_instructions(code)]
    returns = [
        step.positions
        for before, step in pairwise([steps[0], *steps])
        if step.opname in RETURNS and _literal_of(before, step) in ("", literal)
    ]
    return sorted({at.lineno for at in returns if at is not None and at.lineno is not None})


def _literal_of(before: dis.Instruction, step: dis.Instruction) -> str:
    """Return the word of ``NO_CHUNK`` at a return, judged by the instruction before it; or nothing."""
    given = step if step.opname == "RETURN_CONST" else before
    if (given is before and step.is_jump_target) or not given.opname.startswith(("LOAD_", "RETURN_")):
        return ""
    if given.opname.endswith("_CONST"):
        return NONE if given.argval is None else ""
    return NOT_YET if given.argval == NOT_YET else ""


def _lines_without_return(function: Any) -> list[int]:  # noqa: ANN401  whatever can be called
    """Return the lines below which a function's end is reached without a ``return``."""
    try:
        lines, first = inspect.getsourcelines(function)
        definition = ast.parse(textwrap.dedent("".join(lines))).body[0]
    except (OSError, SyntaxError, TypeError):  # typed into a console, compiled, or no function
        return []
    if not isinstance(definition, ast.FunctionDef):
        return []
    return sorted({first - 1 + line for line in _ends_of(definition.body)})


def _ends_of(body: list[ast.stmt]) -> list[int]:
    """Return the lines after which control falls out of a block's end."""
    match last := body[-1]:
        case ast.Return() | ast.Raise():
            return []
        case ast.While(test=ast.Constant(value=True)):
            return [node.lineno for node in ast.walk(last) if isinstance(node, ast.Break)]
        case ast.If():
            return _ends_of(last.body) + (_ends_of(last.orelse) if last.orelse else [last.lineno])
        case ast.With():
            return _ends_of(last.body)
        case ast.Try():
            blocks = [last.orelse or last.body, *(handler.body for handler in last.handlers)]
            return [line for block in blocks for line in _ends_of(block)]
        case ast.Match():
            every = any(isinstance(case.pattern, ast.MatchAs) and not case.guard for case in last.cases)
            inner = [line for case in last.cases for line in _ends_of(case.body)]
            return inner if every else [*inner, last.lineno]
    return [last.lineno]
