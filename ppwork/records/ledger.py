"""The ledger of a mesh rank: its newest collectives, in a small file of the run folder that stays mapped.

It is what mesh ranks of one host lay their calls beside, and what a rank leaves that is killed in mid-call.
To write a line costs no system call. The file is a ring: lines are numbered from 1, each has a checksum,
and one that is being written, or has been overwritten, does not read.
"""

from __future__ import annotations

import mmap
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from ppwork.errors import named_ranks, ranks_by_value
from ppwork.records.files import read_within
from ppwork.records.identity import pid_space

RECORD = struct.Struct("<qI84s")
RECORD_BYTES = RECORD.size
"""Fixed, so that an exchange of records can never be one of different sizes."""
_TEXT_BYTES = 84
LINES = 64
"""Lines that are kept: no rank is that many collectives ahead of one that it waits for."""
_LINE = struct.Struct(f"<q{RECORD_BYTES}sI")
_HEAD = struct.Struct("<4s100s")
_MAGIC = b"led1"
_SIZE = _HEAD.size + LINES * _LINE.size


class CollectiveCall(msgspec.Struct, frozen=True):
    """A collective that a mesh rank is about to make, or the end of its chunk."""

    chunk_index: int
    count: int
    """Collectives of the chunk, this one included; at its end all of them."""
    operation: str = ""
    """Name, dtype and shape: ``all_reduce float32[4, 8]``. Empty: the chunk has ended on this rank."""

    def to_bytes(self) -> bytes:
        """Return ``RECORD_BYTES`` bytes; a longer operation is cut and keeps its checksum."""
        return RECORD.pack(self.chunk_index, self.count, packed(self.operation))

    @classmethod
    def from_bytes(cls, raw: bytes) -> CollectiveCall:
        """Read another rank's record."""
        chunk_index, count, text = RECORD.unpack(raw)
        return cls(chunk_index, count, text.rstrip(b"\0").decode(errors="replace"))

    def __str__(self) -> str:
        if self.operation:
            return f"called {self.operation} as collective {self.count} of chunk {self.chunk_index}"
        collectives = "collective" if self.count == 1 else "collectives"
        return f"ended chunk {self.chunk_index} after {self.count} {collectives}"


def packed(operation: str) -> bytes:
    """Return an operation as it stands in a record."""
    text = operation.encode()
    return text if len(text) <= _TEXT_BYTES else text[: _TEXT_BYTES - 9] + b"~%08x" % zlib.crc32(text)


def compare_calls(calls: Sequence[CollectiveCall], ranks: Sequence[int]) -> tuple[str, str] | None:
    """Compare what the mesh ranks are about to do: a call for each of their global ranks, in one order.

    Returns:
        ``None`` if all are the same; else what differs and what to check first, the same on every rank.
    """
    ranks_by_call = ranks_by_value(dict(zip(ranks, calls, strict=True)))
    if len(ranks_by_call) == 1:
        return None
    sides = "; ".join(f"{named_ranks(mine)} {call}" for call, mine in ranks_by_call.items())
    in_step = len({(call.chunk_index, call.count, bool(call.operation)) for call in ranks_by_call}) == 1
    return (
        f"The mesh ranks were about to meet in different collectives: {sides}.",
        "what makes the tensors differ between these ranks?"
        if in_step
        else "is a collective behind a flag or a condition that only one rank knows?",
    )


def line_of(number: int, record: bytes) -> bytes:
    """Return a line as it stands in the file."""
    return _LINE.pack(number, record, zlib.crc32(record, number))


def _read(line: bytes) -> tuple[int, bytes] | None:
    """Return number and record of a line, or ``None``: it is not whole, or was never written."""
    number, record, checksum = _LINE.unpack(line)
    return (number, record) if number > 0 and zlib.crc32(record, number) == checksum else None


def ledger_file(run_dir: Path, rank: int) -> Path:
    """Return the path of a mesh rank's ledger."""
    return Path(run_dir) / f"collectives-rank{rank}"


class Ledger:
    """A ledger that stays mapped: this rank's own, which it writes, or another one's of this host.

    Raises:
        OSError: The file cannot be made (this rank).
    """

    def __init__(self, run_dir: Path, rank: int, *, own: bool = True) -> None:
        path = ledger_file(run_dir, rank)
        if own:
            # Under its name only once it is whole: a map of a file that is cut short would end its reader.
            half = path.with_name(f".{path.name}")
            # Zeros, not a hole: a full disk shows here, and not as a SIGBUS at some later line.
            half.write_bytes(_HEAD.pack(_MAGIC, pid_space().encode()[:100]) + bytes(LINES * _LINE.size))
            half.replace(path)
        with path.open("r+b" if own else "rb") as file:
            access = mmap.ACCESS_WRITE if own else mmap.ACCESS_READ
            self._map = mmap.mmap(file.fileno(), _SIZE, access=access)

    @classmethod
    def of(cls, run_dir: Path, rank: int) -> Ledger | None:
        """Return another rank's ledger; ``None``: it has made none yet."""
        try:
            if ledger_file(run_dir, rank).stat().st_size != _SIZE:
                return None
            return cls(run_dir, rank, own=False)
        except (OSError, ValueError):
            return None

    @property
    def here(self) -> bool:
        """Whether its rank runs on this host: of another one's a map shows no new line."""
        return self._map[: _HEAD.size] == _HEAD.pack(_MAGIC, pid_space().encode()[:100])

    def write(self, number: int, line: bytes) -> None:
        """Write a line of ``line_of``."""
        at = _HEAD.size + number % LINES * _LINE.size
        self._map[at : at + _LINE.size] = line

    def differs(self, number: int, line: bytes) -> CollectiveCall | None:
        """Return the call of this number if it is there and is another one than that of ``line``."""
        at = _HEAD.size + number % LINES * _LINE.size
        theirs = self._map[at : at + _LINE.size]
        if theirs == line:
            return None
        # Who writes it just now comes after us, and sees ours.
        read = _read(theirs)
        return CollectiveCall.from_bytes(read[1]) if read is not None and read[0] == number else None

    def close(self) -> None:
        """Give the map back."""
        self._map.close()


def read_ledger(run_dir: Path, rank: int) -> dict[int, CollectiveCall]:
    """Return the newest calls of a rank by their number, in order; nothing if no ledger of it reads."""
    try:
        data = read_within(ledger_file(run_dir, rank), _SIZE)
    except OSError:
        return {}
    if len(data) != _SIZE or not data.startswith(_MAGIC):
        return {}
    lines = (data[at : at + _LINE.size] for at in range(_HEAD.size, _SIZE, _LINE.size))
    return {number: CollectiveCall.from_bytes(raw) for number, raw in sorted(filter(None, map(_read, lines)))}


def first_difference(ledgers: Mapping[int, Mapping[int, CollectiveCall]]) -> tuple[str, str] | None:
    """Return the first call that ranks made otherwise than others, as ``compare_calls`` says it.

    Args:
        ledgers: What ``read_ledger`` gave, by rank.
    """
    common = set.intersection(*(set(calls) for calls in ledgers.values())) if len(ledgers) > 1 else set()
    for number in sorted(common):
        calls = [calls[number] for calls in ledgers.values()]
        if (difference := compare_calls(calls, tuple(ledgers))) is not None:
            return difference
    return None
