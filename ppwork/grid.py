"""A grid of parameters: what the command line asks for, compared with a notebook's parameters cell."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from ppwork.errors import PlanError
from ppwork.parameters import Parameter, Value, code_of, parameters_of, refuse_unknown

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

SHORT_NAMES = {"depth": "in_flight_depth"}
"""A plan's fields by the short names that they have as options of ``ppwork run``."""


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """What a sweep is of; a folder keeps it, and a rerun must have the same."""

    notebook: str
    digest: str
    """Of the notebook's code: outputs may change, what is run may not."""
    axes: dict[str, list[Value]]
    fixed: dict[str, Value]

    @property
    def points(self) -> list[Point]:
        """Every combination; the last axis turns fastest."""
        combined = itertools.product(*self.axes.values())
        return [
            Point(number, dict(zip(self.axes, values, strict=True)))
            for number, values in enumerate(combined, start=1)
        ]


@dataclass(frozen=True)
class Point:
    """One combination of values."""

    number: int
    values: Mapping[str, Value]

    @property
    def text(self) -> str:
        """``mesh_size=2, chunks=8``."""
        return ", ".join(f"{name}={value}" for name, value in self.values.items())

    @property
    def folder(self) -> str:
        """Name of its folder, below that of the sweep."""
        return f"{self.number:02d}-" + re.sub(r"[^\w.=,+-]", "_", self.text.replace(", ", ","))


def grid_of(notebook: Path, grid: Iterable[str], fixed: Iterable[str] = ()) -> Grid:
    """Return the grid that the command line asks for.

    Args:
        notebook: Its parameters cell says which names and types there are.
        grid: Texts such as ``mesh_size=1,2``; ``depth=1,2`` is ``in_flight_depth`` where that is a parameter.
        fixed: Texts such as ``chunks=8``: the same at every point.

    Raises:
        PlanError: No notebook, no such parameter, a value of another type, a name or value twice.
    """
    known = parameters_of(notebook)
    asked = [_split(text, "--grid mesh_size=1,2", known) for text in grid]
    set_ = [_split(text, "--set chunks=8", known) for text in fixed]
    names = [name for name, _ in (*asked, *set_)]
    refuse_unknown(names, known, notebook.name)
    if not asked:
        raise PlanError("There was no grid.", check_first="--grid mesh_size=1,2")
    for name in names:
        if names.count(name) > 1:
            raise PlanError(f"The parameter {name} was given twice.", check_first="one option for each name")
    axes = {name: [known[name].read(text) for text in texts.split(",")] for name, texts in asked}
    for name, values in axes.items():
        if len(set(values)) < len(values):
            raise PlanError(f"The grid of {name} has a value twice.", check_first=f"--grid {name}=...")
    code = json.dumps(code_of(notebook)).encode()
    return Grid(
        notebook=notebook.name,
        digest=hashlib.sha256(code).hexdigest()[:16],
        axes=axes,
        fixed={name: known[name].read(text) for name, text in set_},
    )


def _split(text: str, example: str, known: Mapping[str, Parameter]) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name or not value:
        raise PlanError(f"The option was {text!r}; it must be NAME=VALUE.", check_first=example)
    short = name not in known and SHORT_NAMES.get(name) in known
    return SHORT_NAMES[name] if short else name, value
