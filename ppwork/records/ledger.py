"""The ledger of a mesh rank: its newest collectives, in a small file of the run folder that stays mapped.

Mesh ranks of one host compare their calls with it, and a rank that is killed in mid-call leaves it behind.
Writing a line costs no system call. The file is a ring: lines are numbered from 1, each line has a checksum,
and a line that is being written, or has been overwritten, does not read.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from pathlib import Path

import msgspec

from ppwork.records.files import read_within, write_whole
from ppwork.records.identity import pid_space

_TEXT_BYTES = 84
CALL = struct.Struct(f"<qI{_TEXT_BYTES}s")
"""The part that must be equal on all ranks."""
SHAPES_BYTES = 160
RETURNED = struct.Struct(f"<I{SHAPES_BYTES}s")
"""Follows ``CALL``: at a chunk's end, digest and shapes of what the rank returned for the chunk."""
LINE_BYTES, SITE_BYTES = 216, 376
"""The last part: where the rank's code made the call. Its first line has at most ``LINE_BYTES``."""
RECORD_BYTES = CALL.size + RETURNED.size + SITE_BYTES
"""Fixed, so that records in an exchange always have one size."""
LINES = 64
"""Lines that are kept: no rank is that many collectives ahead of a rank that it waits for."""
_LINE = struct.Struct(f"<q{RECORD_BYTES}sI")
_COMPARED = struct.calcsize("<q") + CALL.size + RETURNED.size
"""Bytes at the start of a line that are equal if the calls and the results are."""
_HEAD = struct.Struct("<4s100s")
_MAGIC = b"led5"
_SIZE = _HEAD.size + LINES * _LINE.size


COMPARE = "compare "
"""What a record begins with that is no collective: tensors that a loop holds against the other ranks'."""
ON_DEFAULT = "on the default group"
"""Suffix of an operation that is on the job's own default group, and not on the mesh's."""


class CollectiveCall(msgspec.Struct, frozen=True):
    """A collective that a mesh rank is about to make, or the end of its chunk."""

    chunk_index: int
    count: int
    """Number of collectives of the chunk, this one included; at the chunk's end, of all."""
    operation: str = ""
    """Name, dtype and shape: ``all_reduce float32[4, 8]``. Empty: the chunk has ended on this rank."""
    site: str = ""
    """The user's line of the call, such as ``my_stages.py:41: self.tp.all_reduce(share)``, and its callers'
    places below; at a chunk's end that of the last collective. Ranks may have different lines."""
    digest: int = 0
    """At a chunk's end: digest of a sample of what the rank returned for the chunk; 0: none."""
    shapes: str = ""
    """At a chunk's end: the tensors that the rank returned, each with a mark of a sample of its content, as
    ``'x' float32[4, 8]#0b1f; 'y' int64[]#93e0``."""

    def to_bytes(self) -> bytes:
        """Return ``RECORD_BYTES`` bytes; a longer operation is cut, and gets a checksum of the whole."""
        call = CALL.pack(self.chunk_index, self.count, packed(self.operation))
        return call + RETURNED.pack(self.digest, packed(self.shapes, SHAPES_BYTES)) + packed_site(self.site)

    @classmethod
    def from_bytes(cls, raw: bytes) -> CollectiveCall:
        """Read another rank's record."""
        chunk_index, count, operation = CALL.unpack(raw[: CALL.size])
        behind = CALL.size + RETURNED.size
        digest, shapes = RETURNED.unpack(raw[CALL.size : behind])
        return cls(chunk_index, count, _text(operation), _text(raw[behind:]), digest, _text(shapes))

    @property
    def anywhere(self) -> CollectiveCall:
        """The same call without the place where it was made, and without what was returned."""
        return msgspec.structs.replace(self, site="", digest=0, shapes="")

    @property
    def line(self) -> str:
        """The user's line that made the call, alone."""
        return self.site.partition("\n")[0]

    @property
    def places(self) -> tuple[str, ...]:
        """``file:line`` of the user's code that made the call, then of its callers; empty if not known."""
        line, *callers = self.site.split("\n")
        return (line.partition(": ")[0], *callers) if line else ()

    @property
    def collectives(self) -> str:
        """The count in words."""
        return f"{self.count} {'collective' if self.count == 1 else 'collectives'}"

    def __str__(self) -> str:
        if self.operation:
            return f"called {self.operation} as collective {self.count} of chunk {self.chunk_index}"
        return f"ended chunk {self.chunk_index} after {self.collectives}"


def _text(padded: bytes) -> str:
    return padded.rstrip(b"\0").decode(errors="replace")


def packed(words: str, most: int = _TEXT_BYTES) -> bytes:
    """Return an operation, or shapes, in the form of a record of at most so many bytes."""
    text = words.encode(errors="replace")
    return text if len(text) <= most else text[: most - 9] + b"~%08x" % zlib.crc32(text)


def packed_site(site: str) -> bytes:
    """Return a site in the form of a record: a long line is cut, and callers follow while there is room."""
    line, *callers = site.split("\n")
    cut = line.encode(errors="replace")[:LINE_BYTES].decode(errors="ignore").encode()
    for caller in callers:
        if len(more := cut + b"\n" + caller.encode(errors="replace")) > SITE_BYTES:
            break
        cut = more
    return cut.ljust(SITE_BYTES, b"\0")


def line_of(number: int, record: bytes) -> bytes:
    """Return a line of the file, with a record of ``RECORD_BYTES``."""
    return _LINE.pack(number, record, zlib.crc32(record, number))


def _read(line: bytes) -> tuple[int, bytes] | None:
    """Return number and record of a line, or ``None`` if it is not whole or was never written."""
    number, record, checksum = _LINE.unpack(line)
    return (number, record) if number > 0 and zlib.crc32(record, number) == checksum else None


def ledger_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a mesh rank's ledger."""
    return Path(run_dir) / f"collectives-rank{rank}"


class Ledger:
    """A ledger that stays mapped: this rank's own, which it writes, or that of another rank of this host.

    Raises:
        OSError: The file cannot be made (this rank).
    """

    def __init__(self, run_dir: Path, rank: int, *, own: bool = True) -> None:
        path = ledger_file(run_dir, rank)
        if own:
            # Whole, because a map of a file that is cut short would end its reader; zeros and no hole, so
            # that a full disk shows here, and not as a SIGBUS at some later line.
            write_whole(path, _HEAD.pack(_MAGIC, pid_space().encode()[:100]) + bytes(LINES * _LINE.size))
        with path.open("r+b" if own else "rb") as file:
            access = mmap.ACCESS_WRITE if own else mmap.ACCESS_READ
            self._map = mmap.mmap(file.fileno(), _SIZE, access=access)

    @classmethod
    def of(cls, run_dir: Path, rank: int) -> Ledger | None:
        """Return another rank's ledger; ``None`` if it has not made one yet."""
        try:
            if ledger_file(run_dir, rank).stat().st_size != _SIZE:
                return None
            return cls(run_dir, rank, own=False)
        except (OSError, ValueError):
            return None

    @property
    def here(self) -> bool:
        """Whether the ledger's rank runs on this host: a map of another host's file shows no new lines."""
        return self._map[: _HEAD.size] == _HEAD.pack(_MAGIC, pid_space().encode()[:100])

    def write(self, number: int, line: bytes) -> None:
        """Write a line from ``line_of``."""
        at = _HEAD.size + number % LINES * _LINE.size
        self._map[at : at + _LINE.size] = line

    def differs(self, number: int, line: bytes) -> CollectiveCall | None:
        """Return the call of this number if it is there and it, or its result, differs from ``line``."""
        at = _HEAD.size + number % LINES * _LINE.size
        theirs = self._map[at : at + _LINE.size]
        if theirs[:_COMPARED] == line[:_COMPARED]:
            return None
        # A rank that writes this line just now comes after us, and sees our line.
        read = _read(theirs)
        return CollectiveCall.from_bytes(read[1]) if read is not None and read[0] == number else None

    def calls(self) -> dict[int, CollectiveCall]:
        """Return the newest calls by their number, in order."""
        return _calls_of(self._map[:])

    def close(self) -> None:
        """Release the map."""
        self._map.close()


def read_ledger(run_dir: Path, rank: int) -> dict[int, CollectiveCall]:
    """Return the newest calls of a rank by their number, in order; empty if its ledger does not read."""
    try:
        data = read_within(ledger_file(run_dir, rank), _SIZE)
    except OSError:
        return {}
    return _calls_of(data) if len(data) == _SIZE and data.startswith(_MAGIC) else {}


def _calls_of(data: bytes) -> dict[int, CollectiveCall]:
    lines = (data[at : at + _LINE.size] for at in range(_HEAD.size, _SIZE, _LINE.size))
    return {number: CollectiveCall.from_bytes(raw) for number, raw in sorted(filter(None, map(_read, lines)))}
