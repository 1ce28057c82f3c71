"""The line of the user's own code that led to a call, found cheaply enough to be kept for each of them."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType

from ppwork.records.failure import is_users

LONGEST = 120
"""Characters that are kept of a file's name; its end says more."""

_files: dict[str, bool] = {}
"""Whether a file is the user's: by its name, whose hash is kept, and not by code, which is hashed whole."""
_lines: dict[tuple[int, int], tuple[CodeType, str]] = {}
"""By code and place in it: to ask for the line costs as much as all the rest, and so does the hash of a code.

The code is kept, so that its ``id`` stays its own.
"""


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, the one that called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is the user's own, from this one outwards; ``None``: there is none."""
    while frame is not None:
        file = frame.f_code.co_filename
        if (mine := _files.get(file)) is None:
            mine = _files[file] = is_users(file)
        if mine:
            return frame
        frame = frame.f_back
    return None


def line_from(frame: FrameType | None) -> str:
    """Return the user's line from this frame outwards, as one says it, or nothing: there is none.

    Such as ``my_stages.py:41: self.tp.all_reduce(share)``.
    """
    if (frame := users_frame(frame)) is None:
        return ""
    code = frame.f_code
    place = id(code), frame.f_lasti
    if (found := _lines.get(place)) is not None:
        return found[1]
    file = as_written(code.co_filename)
    file = file if len(file) <= LONGEST else f"...{file[3 - LONGEST :]}"
    text = linecache.getline(code.co_filename, frame.f_lineno, frame.f_globals).strip()
    line = f"{file}:{frame.f_lineno}" + (f": {text}" if text else "")
    _lines[place] = code, line
    return line


def as_written(file: str) -> str:
    """Return a file's name as people write it in the working folder: relative to it, where it is below."""
    with suppress(OSError, ValueError):  # the folder is gone, or the file lies elsewhere
        return str(Path(file).relative_to(Path.cwd()))
    return file
