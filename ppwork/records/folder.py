"""The folder of a run: made new and empty, or refused before any rank starts."""

from __future__ import annotations

import contextlib
import shutil
import time
from collections.abc import Collection, Iterator
from pathlib import Path

from ppwork.errors import PlanError

MIN_FREE_MB = 64.0
"""MB of 1e6 bytes; a run folder on a disk with less is refused: spans, logs and a small video take some."""


REFUSED_FILE = "refused.json"
"""Alone in the folder of a run that never began: why not, as rank 0 saw it. The next start may use it."""


def new_run_dir(out: Path | str | None, option: str = "--out", beside: Collection[str] = ()) -> Path:
    """Make the run folder; accept an existing folder only if it is empty.

    Args:
        out: The folder, or ``None`` for ``runs/<time>-run``.
        option: Name of the caller's option for it.
        beside: Names of files that may be in it.

    Raises:
        PlanError: The folder exists and is not empty, is not a folder, cannot be made or written, has no name
            in UTF-8, or its disk is nearly full.
    """
    path = Path(out) if out is not None else Path("runs") / time.strftime("%Y%m%d-%H%M%S-run")
    try:
        named = bool(str(out).encode()) and "\0" not in str(out) and bool(str(path.absolute()).encode())
    except UnicodeEncodeError:
        named = False
    except OSError as error:
        raise PlanError(
            f"The output folder {path} cannot be used: {error.strerror}.",
            check_first="`cd .`: was the working folder removed, or made anew?",
        ) from error
    if not named:
        raise PlanError(
            f"The output folder {str(out)!r} has no name, or one that is not UTF-8.",
            check_first=f"{option}: is a variable unset? The working folder is `.`",
        )
    try:
        if out is None:
            path = _made_fresh(path)
        refuse_taken(path, option, beside)
        path.mkdir(parents=True, exist_ok=True)
        probe_file = path / ".ppwork"
        probe_file.touch(exist_ok=False)  # follows no link
        probe_file.unlink()
    except OSError as error:
        what = f"The output folder {path} cannot be used: {error.strerror}."
        raise PlanError(what, check_first=f"{option}: is its parent writable, is the disk full?") from error
    if (free := free_mb(path)) < MIN_FREE_MB:
        raise PlanError(
            f"The output folder {path.absolute()} has {free:.1f} MB free; a run needs {MIN_FREE_MB:g} MB.",
            check_first=f"`df -h {path.absolute()}`; remove old runs there, or give {option} another disk",
        )
    return path.absolute()


def refuse_taken(path: Path, option: str = "--out", beside: Collection[str] = ()) -> None:
    """Refuse a folder that is not empty, or a file; make nothing.

    Raises:
        PlanError: The folder is not empty, or a file; ``option`` and ``beside`` as for ``new_run_dir``.
        OSError: The folder cannot be read.
    """
    if (file := next((each for each in (path, *path.parents) if each.is_file()), None)) is not None:
        what = f"The output folder {path} cannot be used: {file} is a file."
        raise PlanError(what, check_first=f"another {option}")
    if path.is_dir() and any(file.name not in beside for file in path.iterdir()):
        raise PlanError(
            f"The output folder {path} exists and is not empty; nothing was overwritten.",
            check_first=f"give {option} another folder"
            + (", or leave it out for a fresh one under runs/" if option == "--out" else ", new or empty"),
        )


@contextlib.contextmanager
def run_folder(out: Path | str | None, beside: Collection[str] = ()) -> Iterator[Path]:
    """Make the run folder, as ``new_run_dir``; remove it if it is new and still empty after the body.

    Raises:
        PlanError: As ``new_run_dir``.
    """
    was_there = out is not None and Path(out).exists()
    run_dir = new_run_dir(out, beside=beside)
    try:
        yield run_dir
    finally:
        if not was_there:
            with contextlib.suppress(OSError):  # the body has written into it
                run_dir.rmdir()


def free_mb(path: Path) -> float:
    """Return the free space of a folder's disk, in MB of 1e6 bytes."""
    return shutil.disk_usage(path).free / 1e6


def _made_fresh(path: Path) -> Path:
    """Make a folder of this name or the next free name; two launches in one second never share it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    candidate, number = path, 1
    while True:
        with contextlib.suppress(FileExistsError):
            candidate.mkdir()
            return candidate
        number += 1
        candidate = path.with_name(f"{path.name}-{number}")
