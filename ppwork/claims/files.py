"""What a rank of a program leaves in the program's folder, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def notes_file(folder: Path, rank: int) -> Path:
    """Return the path of a rank's notes, one JSON object a line."""
    return folder / f"notes{rank}.jsonl"


def outcome_file(folder: Path, rank: int) -> Path:
    """Return the path of how a rank ended by itself; not there if it was killed or aborted."""
    return folder / f"outcome{rank}.json"


def begun_file(folder: Path, rank: int) -> Path:
    """Return the path of the mark that a rank has come to its program: from there its limit counts."""
    return folder / f"begun{rank}"


def stack_file(folder: Path, rank: int) -> Path:
    """Return the path of where a rank was when its limit passed."""
    return folder / f"stack{rank}.txt"
