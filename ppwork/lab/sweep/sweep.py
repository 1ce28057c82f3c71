"""A grid of parameters through a notebook: each point one papermill of its own, in a folder of its own.

**How summaries are taken from a notebook.** papermill executes it with the point's folder as working
directory, and ``launch`` puts its run folders below ``runs/`` of the working directory. So what a point ran
is what lies below its folder: a run is a folder with a ``plan.json``, in the order in which these were
written. Neither notebook nor ``launch`` know of it, runs that failed on purpose count, and when a later cell
fails the runs before it are still there. What a notebook launches to some other place (``out=`` with an
absolute path) is not seen.

**Again with the same folder.** Points that ended well are kept and not run again; a point that failed or was
interrupted is run again, and what it had left is moved aside, never removed. A folder of another notebook,
of other code in it or of another grid is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from ppwork.errors import PlanError, UnavailableError
from ppwork.lab.parameters import Parameter, Value, code_of, parameters_of, refuse_unknown
from ppwork.launcher.torchrun import running
from ppwork.launcher.view import QUIET_VARIABLE
from ppwork.process import held
from ppwork.records.files import write_whole
from ppwork.version import WHEEL

PAPERMILL = "from papermill.__main__ import papermill; papermill()"
"""papermill, to be ``held``; its kernel leaves with it, and the ranks with the kernel."""
SWEEP_FILE, POINT_FILE = "sweep.json", "point.json"
NOTEBOOK_FILE, LOG_FILE = "executed.ipynb", "papermill.log"
CELL_LIMIT_S = 600
POINT_LIMIT_S = 1800.0
NAME_BYTES = 200
"""Of a point's folder: no file system has names of more than 255, and the number in front is enough."""
SHORT_NAMES = {"depth": "in_flight_depth"}
"""A plan's fields by the short names that they have as options of ``ppwork run``."""
OK, FAILED, TOO_LONG, UNFINISHED, NOT_RUN = "ok", "failed", "past its limit", "interrupted", "not run"


class Point(msgspec.Struct, frozen=True, kw_only=True):
    """One combination of values."""

    number: int
    values: dict[str, Value]

    @property
    def text(self) -> str:
        """``mesh_size=2, chunks=8``."""
        return ", ".join(f"{name}={value}" for name, value in self.values.items())

    @property
    def folder(self) -> str:
        """Name of its folder, below that of the sweep."""
        name = f"{self.number:02d}-" + re.sub(r"[^\w.=,+-]", "_", self.text.replace(", ", ","))
        return name.encode()[:NAME_BYTES].decode(errors="ignore")


class Grid(msgspec.Struct, frozen=True, kw_only=True):
    """A notebook, and the values of its parameters; a folder keeps it, and a rerun must have the same."""

    notebook: str
    digest: str
    """Of the notebook's code: outputs may change, what is run may not."""
    axes: dict[str, list[Value]]
    fixed: dict[str, Value]

    @property
    def points(self) -> list[Point]:
        """Every combination; the last axis turns fastest."""
        combined = itertools.product(*self.axes.values())
        values = [dict(zip(self.axes, combination, strict=True)) for combination in combined]
        return [Point(number=number, values=each) for number, each in enumerate(values, start=1)]


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """End of a point."""

    state: str
    seconds: float = 0.0
    why: str = ""
    """First line of the error of the cell that failed."""


def grid_of(notebook: Path, grid: Iterable[str], fixed: Iterable[str] = ()) -> Grid:
    """Return the grid that the command line asks for.

    Args:
        notebook: Its parameters cell says which names and types there are.
        grid: Texts such as ``mesh_size=1,2``; ``depth=1,2`` is ``in_flight_depth`` where that is a parameter.
        fixed: Texts such as ``chunks=8``: the same at every point.

    Raises:
        PlanError: No notebook, no such parameter, a value of another type, a name or value twice.
    """
    parameters = parameters_of(notebook)
    swept = [_split(text, "--grid mesh_size=1,2", parameters) for text in grid]
    same = [_split(text, "--set chunks=8", parameters) for text in fixed]
    names = [name for name, _ in (*swept, *same)]
    refuse_unknown(names, parameters, notebook.name)
    if not swept:
        raise PlanError("There was no grid.", check_first="--grid mesh_size=1,2")
    for name in names:
        if names.count(name) > 1:
            raise PlanError(f"The parameter {name} was given twice.", check_first="one option for each name")
    axes = {name: [parameters[name].read(text) for text in texts.split(",")] for name, texts in swept}
    for name, values in axes.items():
        if len(set(values)) < len(values):
            raise PlanError(f"The grid of {name} has a value twice.", check_first=f"--grid {name}=...")
    code = json.dumps(code_of(notebook)).encode()
    return Grid(
        notebook=notebook.name,
        digest=hashlib.sha256(code).hexdigest()[:16],
        axes=axes,
        fixed={name: parameters[name].read(text) for name, text in same},
    )


def sweep_folder(out: Path | None, grid: Grid) -> Path:
    """Make the folder of a sweep, or take one that is of the same sweep.

    Raises:
        PlanError: It is of another sweep, is no folder, has other files in it or cannot be written.
    """
    folder = out if out is not None else Path("runs") / time.strftime("%Y%m%d-%H%M%S-sweep")
    record = folder / SWEEP_FILE
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not record.exists():
            if any(folder.iterdir()):
                raise PlanError(
                    f"The folder {folder} is not empty and of no sweep; nothing was overwritten.",
                    check_first="give --out another folder",
                )
            write_whole(record, msgspec.json.format(msgspec.json.encode(grid), indent=2))
    except OSError as error:
        raise PlanError(
            f"The folder {folder} cannot be used: {error.strerror}.", check_first="--out: is it writable?"
        ) from error
    if read_grid(folder) != grid:
        raise PlanError(
            f"The folder {folder} is of another sweep: other notebook, other code in it or another grid.",
            check_first=f"{record} says which; give --out another folder",
        )
    return folder.absolute()


def read_grid(folder: Path) -> Grid:
    """Return which sweep a folder is of.

    Raises:
        PlanError: It is of none.
    """
    try:
        return msgspec.json.decode((folder / SWEEP_FILE).read_bytes(), type=Grid)
    except (OSError, msgspec.MsgspecError) as error:
        raise PlanError(
            f"The folder {folder} is of no sweep.", check_first="a folder that `ppwork sweep` made"
        ) from error


def outcome_of(folder: Path, point: Point) -> Outcome:
    """Return what a sweep's folder says of a point."""
    point_dir = folder / point.folder
    try:
        return msgspec.json.decode((point_dir / POINT_FILE).read_bytes(), type=Outcome)
    except (OSError, msgspec.MsgspecError):
        return Outcome(state=UNFINISHED if point_dir.exists() else NOT_RUN)


def run_sweep(
    notebook: Path,
    grid: Grid,
    folder: Path,
    *,
    limit_s: float = POINT_LIMIT_S,
    progress: Callable[[Point, Outcome], None] | None = None,
) -> None:
    """Run every point that has not ended well yet, one after another.

    A point that fails does not stop the others; what each has left lies in its folder.

    Args:
        notebook: What to execute.
        grid: Its points.
        folder: From ``sweep_folder``.
        limit_s: Hard limit on each point, in seconds.
        progress: Called with each point when it has ended, also with those that are kept.

    Raises:
        UnavailableError: papermill is not installed; nothing has started.
        KeyboardInterrupt: As pressed; the point under way has ended with everything it had started.

    Blocks:
        Until all points have ended; at most ``limit_s`` and a few seconds for each.
    """
    if find_spec("papermill") is None:
        raise UnavailableError("papermill is not installed.", check_first=f'pip install "{WHEEL}[lab]"')
    for point in grid.points:
        outcome = outcome_of(folder, point)
        if outcome.state != OK:
            point_dir = _fresh(folder / point.folder)
            outcome = _run(notebook.absolute(), {**grid.fixed, **point.values}, point_dir, limit_s)
            write_whole(point_dir / POINT_FILE, msgspec.json.encode(outcome))
        if progress is not None:
            progress(point, outcome)


def _fresh(point_dir: Path) -> Path:
    """Make a point's folder; what an earlier attempt left is moved aside."""
    if point_dir.exists():
        aside = (point_dir.with_name(f"{point_dir.name}.before-{n}") for n in itertools.count(1))
        point_dir.rename(next(path for path in aside if not path.exists()))
    point_dir.mkdir()
    return point_dir


def _run(notebook: Path, values: Mapping[str, Value], point_dir: Path, limit_s: float) -> Outcome:
    start, code = time.monotonic(), None
    environment = {**os.environ, QUIET_VARIABLE: "1", "PYTHONUNBUFFERED": "1"}
    with (
        (point_dir / LOG_FILE).open("wb") as log,
        running(papermill_command(notebook, values, point_dir), environment, log) as process,
        contextlib.suppress(subprocess.TimeoutExpired),  # it is ended on the way out
    ):
        code = process.wait(limit_s)
    seconds = round(time.monotonic() - start, 1)
    if code == 0:
        return Outcome(state=OK, seconds=seconds)
    if code is None:
        return Outcome(state=TOO_LONG, seconds=seconds, why=f"it took more than {limit_s:g} s")
    return Outcome(state=FAILED, seconds=seconds, why=_why(point_dir) or f"papermill ended with code {code}")


def papermill_command(notebook: Path, values: Mapping[str, Value], point_dir: Path) -> list[str]:
    """Return the command that executes a notebook with these values in a folder."""
    command = [*held(PAPERMILL), str(notebook), str(point_dir / NOTEBOOK_FILE), "--cwd", str(point_dir)]
    command += ["-k", "python3", "--no-progress-bar", "--execution-timeout", str(CELL_LIMIT_S)]
    for name, value in values.items():
        # papermill reads numbers out of what -p gives it, and leaves -r alone: a text stays a text.
        command += ["-r" if isinstance(value, str) else "-p", name, str(value)]
    return command


def _why(point_dir: Path) -> str:
    """Return the first line of the first error that papermill has written into the notebook."""
    try:
        cells: list[dict[str, Any]] = json.loads((point_dir / NOTEBOOK_FILE).read_text())["cells"]
    except (OSError, ValueError, KeyError):
        return ""
    errors = [
        output
        for cell in cells
        if "raises-exception" not in cell["metadata"].get("tags", [])
        for output in cell.get("outputs", [])
        if output["output_type"] == "error"
    ]
    return f"{errors[0]['ename']}: {errors[0]['evalue']}".splitlines()[0] if errors else ""


def _split(text: str, example: str, parameters: Mapping[str, Parameter]) -> tuple[str, str]:
    name, separator, value = text.partition("=")
    if not separator or not name or not value:
        raise PlanError(f"The option was {text!r}; it must be NAME=VALUE.", check_first=example)
    short = name not in parameters and SHORT_NAMES.get(name) in parameters
    return SHORT_NAMES[name] if short else name, value
