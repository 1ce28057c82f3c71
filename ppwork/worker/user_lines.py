"""The line of the user's own code that led to a call, found cheaply enough to keep it for each call."""

from __future__ import annotations

import linecache
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType

from ppwork.records.failure import OWN, is_users

LONGEST = 120
"""Most characters of a file's name that are kept; its end says more."""

CALLERS, WALKED = 3, 16
"""Most lines kept of those that led to a call, and most frames searched for them: each takes time."""

_files: dict[str, bool] = {}
"""Whether a file is the user's, by name: a string keeps its hash, while a code object is hashed whole."""
_lines: dict[tuple[int, int], tuple[CodeType, str]] = {}
"""Lines by ``id`` and place of their code: to look a line up costs as much as all the rest.

The code object is kept, so that no other object can get its ``id``.
"""
_stacks: dict[tuple[int, ...], str] = {}
"""Stacks by the places of a call and of its callers, whose code objects ``_lines`` keeps."""


def outwards(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, its caller, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def users_frame(frame: FrameType | None) -> FrameType | None:
    """Return the user's innermost frame, from this one outwards; ``None`` if there is none."""
    while frame is not None:
        file = frame.f_code.co_filename
        if (mine := _files.get(file)) is None:
            mine = _files[file] = is_users(file)
        if mine:
            return frame
        frame = frame.f_back
    return None


def line_from(frame: FrameType | None) -> str:
    """Return the user's line from this frame outwards, in words; empty if there is none.

    For example ``my_stages.py:41: self.tp.all_reduce(share)``.
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
    """Return ``line_from`` a frame, and below it the places in the user's code that called it.

    There are up to ``CALLERS`` places, such as ``my_stages.py:80``, the nearest first: two ranks in the same
    helper may differ in its caller. The search stops at ppwork's own code, which is the same on all ranks.
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
    """Return a file's name as people write it: relative to the working folder, if it is below that."""
    with suppress(OSError, ValueError):  # the folder is gone, or the file is elsewhere
        return str(Path(file).relative_to(Path.cwd()))
    return file
