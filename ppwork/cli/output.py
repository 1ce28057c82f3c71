"""Output of the command line: JSON, plain lines, tables and files."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from ppwork.errors import PlanError, visible
from ppwork.records.files import write_whole

out = Console()
err = Console(stderr=True)


def write_json(data: Any) -> None:  # noqa: ANN401  JSON types
    """Write data as indented JSON to standard output, and nothing else on its lines."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(data), indent=2).decode() + "\n")


def write_line(data: Any) -> None:  # noqa: ANN401  JSON types
    """Write data as one line of JSON to standard output."""
    sys.stdout.write(msgspec.json.encode(data).decode() + "\n")


def write_text(text: str, *, to: Console = out) -> None:
    """Write a text so that all of it is seen: no markup is read in it, no colour added, no line broken."""
    to.print(visible(text), markup=False, emoji=False, highlight=False, soft_wrap=True)


def write_files(folder: Path, files: Mapping[str, bytes], check_first: str) -> list[Path]:
    """Write files by name into a folder, which is made if it is not there, and return their paths.

    Raises:
        PlanError: The folder cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in files.items():
            write_whole(folder / name, data)
    except OSError as error:
        text = f"The folder {folder} cannot be written: {error.strerror}."
        raise PlanError(text, check_first=check_first) from error
    return [folder / name for name in files]
