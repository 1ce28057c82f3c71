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
import itertools
import json
import os
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.errors import PlanError
from ppwork.failure import write_whole
from ppwork.grid import Grid, Point
from ppwork.torchrun import running

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ppwork.parameters import Value

HELD_PAPERMILL = """\
from ppwork import lifeline; lifeline.hold()
from papermill.__main__ import papermill; papermill()
"""
"""papermill on our lifeline; its kernel leaves with it, and the ranks with the kernel."""
SWEEP_FILE, POINT_FILE = "sweep.json", "point.json"
NOTEBOOK_FILE, LOG_FILE = "executed.ipynb", "papermill.log"
CELL_LIMIT_S = 600
POINT_LIMIT_S = 1800.0
OK, FAILED, TOO_LONG, UNFINISHED, NOT_RUN = "ok", "failed", "past its limit", "interrupted", "not run"


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """What came of a point."""

    state: str
    seconds: float = 0.0
    why: str = ""
    """First line of the error of the cell that failed."""


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
    """Return what a folder says of a point."""
    place = folder / point.folder
    try:
        return msgspec.json.decode((place / POINT_FILE).read_bytes(), type=Outcome)
    except (OSError, msgspec.MsgspecError):
        return Outcome(state=UNFINISHED if place.exists() else NOT_RUN)


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
        PlanError: papermill is not installed; nothing has started.
        KeyboardInterrupt: As pressed; the point under way has ended with everything it had started.

    Blocks:
        Until all points have ended; at most ``limit_s`` and a few seconds for each.
    """
    if find_spec("papermill") is None:
        raise PlanError("papermill is not installed.", check_first='pip install "ppwork[lab]"')
    for point in grid.points:
        outcome = outcome_of(folder, point)
        if outcome.state != OK:
            place = _fresh(folder / point.folder)
            outcome = _run(notebook.absolute(), {**grid.fixed, **point.values}, place, limit_s)
            write_whole(place / POINT_FILE, msgspec.json.encode(outcome))
        if progress is not None:
            progress(point, outcome)


def _fresh(place: Path) -> Path:
    """Make a point's folder; what an earlier attempt left is moved aside."""
    if place.exists():
        numbers = itertools.count(1)
        aside = (place.with_name(f"{place.name}.before-{number}") for number in numbers)
        place.rename(next(path for path in aside if not path.exists()))
    place.mkdir()
    return place


def _run(notebook: Path, values: Mapping[str, Value], place: Path, limit_s: float) -> Outcome:
    start, code = time.monotonic(), None
    environment = {**os.environ, "PPWORK_NONINTERACTIVE": "1", "PYTHONUNBUFFERED": "1"}
    with (
        (place / LOG_FILE).open("wb") as log,
        running(papermill_command(notebook, values, place), environment, log) as process,
        contextlib.suppress(subprocess.TimeoutExpired),  # it is ended on the way out
    ):
        code = process.wait(limit_s)
    seconds = round(time.monotonic() - start, 1)
    if code == 0:
        return Outcome(state=OK, seconds=seconds)
    if code is None:
        return Outcome(state=TOO_LONG, seconds=seconds, why=f"it took more than {limit_s:g} s")
    return Outcome(state=FAILED, seconds=seconds, why=_why(place) or f"papermill ended with code {code}")


def papermill_command(notebook: Path, values: Mapping[str, Value], place: Path) -> list[str]:
    """Return the command that executes a notebook with these values in a folder."""
    # papermill reads numbers out of what -p gives it, and leaves -r alone: a text stays a text.
    given = [
        word
        for name, value in values.items()
        for word in ("-r" if isinstance(value, str) else "-p", name, str(value))
    ]
    return [
        sys.executable, "-c", HELD_PAPERMILL, str(notebook), str(place / NOTEBOOK_FILE), "--cwd", str(place),
        "-k", "python3", "--no-progress-bar", "--execution-timeout", str(CELL_LIMIT_S), *given,
    ]  # fmt: skip


def _why(place: Path) -> str:
    """Return the first line of the first error that papermill has written into the notebook."""
    try:
        cells: list[dict[str, Any]] = json.loads((place / NOTEBOOK_FILE).read_text())["cells"]
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
