"""Files that grow while they are read: the spans of a rank, the last lines of its log."""

from __future__ import annotations

from pathlib import Path

from ppwork.records.spans import Entry, parse_entries

LOG_BYTES = 4096
"""Bytes of a log's end that are read for its last lines."""


class SpanTail:
    """Reads a growing span file and returns what is new.

    Args:
        path: The file; it need not be there yet.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0

    def read(self) -> list[Entry]:
        """Return the whole entries that came since the last call."""
        if not self._path.exists():
            return []
        with self._path.open("rb") as file:
            file.seek(self._offset)
            entries, used = parse_entries(file.read())
        self._offset += used
        return entries


def last_lines(path: Path, count: int) -> list[str]:
    """Return the last lines of a text that are not blank, at most ``count``; none if it is not there."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LOG_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return []
    lines = [line.rstrip() for line in text.splitlines() if line.strip()]
    if size > LOG_BYTES:
        lines = lines[1:]  # it begins somewhere in a line
    return lines[-count:]
