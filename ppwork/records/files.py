"""Files that are there whole or not at all, also after a kill."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Write a file whole or not at all: a temporary name beside it, then a rename.

    What was written survives the death of the process, by SIGKILL too: the kernel has it. It is not forced
    onto the disk (fsync), so a host that loses its power may lose it.

    Raises:
        OSError: It could not be written; the old file is as it was and nothing else is left behind.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        temporary.write_bytes(data)
        temporary.replace(path)
    finally:
        with contextlib.suppress(OSError):  # the first error is the one to report
            temporary.unlink(missing_ok=True)
