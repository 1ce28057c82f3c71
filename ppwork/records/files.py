"""Files of a run's folder: written whole or not at all, read within limits."""

from __future__ import annotations

import contextlib
import secrets
from errno import EFBIG, EINVAL
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T")
MAX_BYTES = 64 << 20
"""Most bytes of a JSON file that are read; no rank writes so many."""


def temporary(path: Path) -> Path:
    """Return a hidden name beside ``path``; nobody can guess it, so nobody can have put a link there."""
    return path.with_name(f".{path.name}.{secrets.randbits(64)}")


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: write a new file beside it, then rename that.

    The file survives the death of the process, even by SIGKILL: the kernel has it. It is not forced onto the
    disk (fsync), so a host that loses power may lose it.

    Raises:
        OSError: It could not be written; the old file is unchanged and nothing else is left behind.
    """
    half = temporary(path)
    try:
        with half.open("xb") as file:  # follows no link
            file.write(data)
        half.replace(path)
    finally:
        with contextlib.suppress(OSError):  # the first error is the one to report
            half.unlink(missing_ok=True)


def read_within(path: Path, most: int) -> bytes:
    """Return the bytes of a file. Its folder may come from anywhere: this reads no pipe and no device.

    Raises:
        OSError: The file does not exist, is not regular, or is larger than ``most`` bytes.
    """
    if path.exists() and not path.is_file():
        raise OSError(EINVAL, "It is no regular file", str(path))
    with path.open("rb") as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(EFBIG, f"It is larger than {most >> 20} MiB", str(path))
    return data


def read_json(path: Path, kind: type[T]) -> T | None:
    """Return the content of a JSON file; ``None`` if it does not exist, or does not read as ``kind``."""
    try:
        return msgspec.json.decode(read_within(path, MAX_BYTES), type=kind)
    except (OSError, ValueError, RecursionError):  # the last: nested deeper than any file of ours
        return None
