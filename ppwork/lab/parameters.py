"""A notebook's parameters: read from its parameters cell, and compared with what somebody wants to set.

papermill only warns of a name that the notebook does not have, and then runs it with the defaults: the answer
looks right and is of another question. So names are compared before anything starts, by ``ppwork sweep`` from
outside and by ``only_known_parameters`` in a cell of the notebook itself.
"""

from __future__ import annotations

import ast
import contextlib
import json
import math
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ppwork.errors import PlanError, meant

Value = str | int | float | bool
TAG = "parameters"
KINDS = ("int", "float", "str", "bool")
INJECTED = "# Parameters\n"
"""A cell that papermill put in begins with this."""


@dataclass(frozen=True)
class Parameter:
    """One line of a parameters cell: ``chunks: int = 16  # chunks of each timed run``."""

    name: str
    kind: str
    """Its annotation: one of ``KINDS``."""
    default: Value

    def read(self, text: str) -> Value:
        """Return a value of this parameter from the command line's text.

        Raises:
            PlanError: The text is no value of the annotated type, or a number that JSON does not have.
        """
        try:
            if self.kind == "bool":
                return {"true": True, "false": False}[text.lower()]
            kinds: dict[str, type[str] | type[int] | type[float]] = {"int": int, "float": float, "str": str}
            value = kinds[self.kind](text)
        except (KeyError, ValueError) as error:
            raise PlanError(
                f"The parameter {self.name} was {text!r}, which is no {self.kind}.",
                check_first=f"its default is {self.default!r}",
            ) from error
        if isinstance(value, float) and not math.isfinite(value):
            raise PlanError(
                f"The parameter {self.name} was {text!r}, which JSON cannot keep.",
                check_first="a large number in its place",
            )
        return value


def code_of(path: Path) -> list[tuple[str, list[str]]]:
    """Return source and tags of every code cell of a notebook.

    Raises:
        PlanError: The file is not there, or is no notebook.
    """
    try:
        cells: list[dict[str, Any]] = json.loads(path.read_text())["cells"]
        return [
            ("".join(cell["source"]), cell["metadata"].get("tags", []))
            for cell in cells
            if cell["cell_type"] == "code"
        ]
    except OSError as error:
        raise PlanError(
            f"The notebook {path} cannot be read: {error.strerror}.", check_first="is the path right?"
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise PlanError(
            f"The file {path} is no notebook.", check_first="a file *.ipynb of Jupyter"
        ) from error


def parameters_of(path: Path) -> dict[str, Parameter]:
    """Return the parameters of a notebook by name, in their order.

    Raises:
        PlanError: It is no notebook, has no cell tagged ``parameters`` with typed names in it, or has more in
            that cell than Python's own values.
    """
    try:
        parameters = declared(code_of(path))
    except (SyntaxError, ValueError) as error:
        raise PlanError(
            f"The parameters of {path} cannot be read: {error}.",
            check_first="its cell tagged `parameters`: no magics, and values that are written out",
        ) from error
    if not parameters:
        raise PlanError(
            f"The notebook {path} has no parameters.",
            check_first="a cell tagged `parameters`, with lines such as `chunks: int = 6  # meaning`",
        )
    return parameters


def declared(cells: Iterable[tuple[str, Collection[str]]]) -> dict[str, Parameter]:
    """Return the parameters among some cells, each given as its source and its tags."""
    return {
        name: parameter for source, tags in cells if TAG in tags for name, parameter in typed(source).items()
    }


def typed(source: str) -> dict[str, Parameter]:
    """Return the parameters that a cell declares with type and value.

    >>> typed("chunks: int = 6  # of four frames")["chunks"]
    Parameter(name='chunks', kind='int', default=6)
    """
    parameters = {}
    for line in ast.parse(source).body:
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name) and line.value is not None:
            name, kind = line.target.id, ast.unparse(line.annotation)
            if kind in KINDS:
                parameters[name] = Parameter(name, kind, ast.literal_eval(line.value))
    return parameters


def refuse_unknown(names: Iterable[str], parameters: Mapping[str, Any], where: str) -> None:
    """Refuse names that are no parameters, with the nearest one that is.

    Raises:
        PlanError: Some name is not among the parameters.
    """
    for name in names:
        if name not in parameters:
            raise PlanError(
                f"There is no parameter {name!r} in {where}.",
                check_first=f"{meant(name, parameters)}its parameters are {', '.join(parameters)}",
            )


def only_known_parameters(cells: Iterable[str] | None = None) -> None:
    """Refuse what papermill injected and the notebook does not have; call it in the first cell after them.

    Args:
        cells: Sources that were executed so far; default: this kernel's. Where the kernel keeps no history
            (nbval), and where papermill was not there, there is nothing to refuse.

    Raises:
        PlanError: A name was injected that no cell declares with a type; papermill then ends with 1.
    """
    executed = list(sys.modules["__main__"].__dict__.get("In", ()) if cells is None else cells)
    injected = [source for source in executed if source.startswith(INJECTED)]
    if not injected:
        return
    parameters: dict[str, Parameter] = {}
    for source in executed:
        # Not of a cell with a magic in it, or with a value that is computed.
        with contextlib.suppress(SyntaxError, ValueError):
            parameters |= typed(source)
    names = [
        target.id
        for source in injected
        for line in ast.parse(source).body
        if isinstance(line, ast.Assign)
        for target in line.targets
        if isinstance(target, ast.Name)
    ]
    refuse_unknown(names, parameters, "this notebook")
