"""The line of the user's own code that led to a call, found cheaply enough to be kept for each of them."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType

from ppwork.records.failure import OWN, is_users

LONGEST = 120
"""Characters that are kept of a file's name; its end says more."""

CALLERS, WALKED = 3, 16
"""Lines that are kept of those that led to a call, and frames in which they are looked for: all take time."""

_files: dict[str, bool] = {}
"""Whether a file is the user's: by its name, whose hash is kept, and not by code, which is hashed whole."""
_lines: dict[tuple[int, int], tuple[CodeType, str]] = {}
"""By code and place in it: to ask for the line costs as much as all the rest, and so does the hash of a code.

The code is kept, so that its ``id`` stays its own.
"""
_stacks: dict[tuple[int, ...], str] = {}
"""By the places of a call and of its callers, whose codes ``_lines`` keeps."""


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


def lines_from(frame: FrameType | None) -> str:
    """Return ``line_from`` a frame, and below it the places of the user's own that called it.

    Up to ``CALLERS`` of them, such as ``my_stages.py:80``, the nearest first: two ranks that are in one
    helper differ in who called it. What called a stage is the same on all, and not looked at.
    """
    if (frame := users_frame(frame)) is None:
        return ""
    stack, place, outer = [frame], [id(frame.f_code), frame.f_lasti], frame.f_back
    for _ in range(WALKED):
        if outer is None:
            break
        file = outer.f_code.co_filename
        if (mine := _files.get(file)) is None:
            mine = _files[file] = is_users(file)
        if mine:
            stack.append(outer)
            place += id(outer.f_code), outer.f_lasti
            if len(stack) > CALLERS:
                break
        elif file.startswith(OWN):
            break
        outer = outer.f_back
    if (found := _stacks.get(key := tuple(place))) is None:
        first, *callers = map(line_from, stack)
        found = _stacks[key] = "\n".join([first, *(line.partition(": ")[0] for line in callers)])
    return found


def as_written(file: str) -> str:
    """Return a file's name as people write it in the working folder: relative to it, where it is below."""
    with suppress(OSError, ValueError):  # the folder is gone, or the file lies elsewhere
        return str(Path(file).relative_to(Path.cwd()))
    return file
