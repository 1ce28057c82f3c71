"""What a newcomer takes away: a project of two stages to change, and the course that fits this version."""

from __future__ import annotations

import contextlib
import shutil
import sysconfig
from pathlib import Path

from ppwork.errors import PlanError, UnavailableError

PROJECT = Path(__file__).parent / "starter_files"
FILES = ("README.md", "stages.py", "own_torchrun.py", "test_pipeline.py", "pipeline.ipynb")
CHECKOUT = Path(__file__).parent.parent.parent
INSTALLED = Path(sysconfig.get_path("data")) / "share" / "ppwork"
"""Where a wheel puts the course."""
LESSONS = "notebooks/[0-9][0-9]-*.ipynb"
COURSE = (
    LESSONS, "notebooks/appendix-*.ipynb", "notebooks/solutions/*.ipynb",
    "GLOSSARY.md", "docs/*.md", "docs/*.png", "docs/examples/*.py", "docs/examples/porting/*.py",
)  # fmt: skip


def new_project(folder: Path) -> list[Path]:
    """Write a project that runs at once into a folder; return its files.

    Raises:
        PlanError: The folder is there and not empty, or cannot be written; nothing was changed in it.
    """
    _must_be_free(folder)
    name, was_there = folder.resolve().name, folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            text = (PROJECT / file).read_text()
            (folder / file).write_text(text.replace("# NAME", f"# {name}", 1))
    except OSError as error:
        with contextlib.suppress(OSError):
            for file in FILES:
                (folder / file).unlink(missing_ok=True)
            if not was_there:
                folder.rmdir()
        raise _unwritable(folder, error) from error
    return [folder / file for file in FILES]


def copy_course(folder: Path) -> list[Path]:
    """Copy the lessons, their solutions, the glossary, the pages and their examples; return the lessons.

    Raises:
        PlanError: The folder is there and not empty, or cannot be written.
        UnavailableError: This installation has no course.
    """
    _must_be_free(folder)
    home = next((home for home in (CHECKOUT, INSTALLED) if list(home.glob(LESSONS))), None)
    if home is None:
        raise UnavailableError(
            "This installation of ppwork has no lessons.", check_first=f"a wheel puts them into {INSTALLED}"
        )
    try:
        for source in sorted(path for pattern in COURSE for path in home.glob(pattern)):
            target = folder / source.relative_to(home)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, target)
    except OSError as error:
        raise _unwritable(folder, error) from error
    return sorted(folder.glob(LESSONS))


def _must_be_free(folder: Path) -> None:
    try:
        is_taken = folder.exists() and (not folder.is_dir() or any(folder.iterdir()))
    except OSError as error:
        raise _unwritable(folder, error) from error
    if is_taken:
        raise PlanError(
            f"{folder} is there, and is no empty folder.", check_first="a name that is not taken yet"
        )


def _unwritable(folder: Path, error: OSError) -> PlanError:
    return PlanError(
        f"The folder {folder} cannot be written: {error.strerror}.", check_first="its parent folder"
    )
