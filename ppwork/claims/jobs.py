"""A program to be run by ranks: the command line of each, its files, and how they ended."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ppwork.claims.claim import Program


class ClaimJob(msgspec.Struct, frozen=True):
    """One program, to be run in a folder, its groups made of a backend."""

    program: Program
    folder: str
    backend: str


class JobOutcome(msgspec.Struct, frozen=True):
    """How the ranks of a job ended: exit code (negative: signal), seconds, whether the limit passed."""

    exit_codes: list[int]
    seconds: list[float]
    hung: list[bool]


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
