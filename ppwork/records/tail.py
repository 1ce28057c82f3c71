"""Files that grow while they are read: the spans of a rank, its calls, the last lines of its log."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from pathlib import Path

from ppwork.records.calls import Begun, Call, CallEnded, Line, calls_file, parse_lines
from ppwork.records.spans import Entry, parse_entries

CALLS = 40
"""Most calls of a rank that a ``CallTail`` keeps."""
BEGIN = 64
"""Bytes that show whether a file was begun anew: its first line has a number and a time."""
LOG_BYTES = 4096
"""Bytes at a log's end that are searched for its last lines."""


class SpanTail:
    """Reads a growing span file and returns new entries.

    Args:
        path: The file; it need not exist yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Entry]:
        """Return the complete entries that came since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            entries, used = parse_entries(file.read())
        self._offset += used
        return entries


class CallTail:
    """Reads the growing calls of a rank and keeps the last calls.

    Args:
        folder: The run's folder; the rank need not have begun.
        rank: The rank.
    """

    def __init__(self, folder: Path, rank: int) -> None:
        self._rank = rank
        self._offsets = {calls_file(folder, rank, tail): (0, b"") for tail in (None, 0, 1)}
        """How far each file was read, and how it begins: the two files of the end go round."""
        self._open: dict[int, Call] = {}
        self._ended: deque[Call] = deque(maxlen=CALLS)

    def read(self) -> list[Call]:
        """Return the last calls in order of their begin, with those that the rank is in."""
        lines: list[Line] = []
        for path, (offset, begin) in self._offsets.items():
            if not path.exists():
                continue
            with path.open("rb") as file:
                now = file.read(BEGIN)
                file.seek(offset if now.startswith(begin) else 0)
                start, data = file.tell(), file.read()
            used = data.rfind(b"\n") + 1
            self._offsets[path] = start + used, now
            lines += parse_lines(data[:used])
        # A call's begin may be in one file of the end, and the call's end in the other.
        self._open |= {line.number: Call(self._rank, line) for line in lines if isinstance(line, Begun)}
        for line in lines:
            if isinstance(line, CallEnded) and (call := self._open.pop(line.number, None)) is not None:
                self._ended.append(replace(call, end_ns=line.at_ns, error=line.error, lent=line.lent))
        return sorted([*self._ended, *self._open.values()], key=lambda call: call.start_ns)


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a text that are not blank, at most ``count``; none if there is no file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if size > LOG_BYTES:
        lines = lines[1:]  # the text begins inside a line
    return lines[-count:]
