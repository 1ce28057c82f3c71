"""The handshake of collectives: what a mesh rank is about to call, as bytes, and how a difference is said.

Collectives match by order alone. One more on one rank, or another shape, makes each later one mean something
else: a hang, or a sum of things that do not belong together. So in the chunks that the plan names, mesh ranks
show each other what they are about to call, and again that a chunk has ended, before they go on.

Pure: records in, a sentence out. ``tensor_parallel`` exchanges them, ``tally`` knows in which chunks.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING

import msgspec

from ppwork.errors import named_ranks

if TYPE_CHECKING:
    from collections.abc import Sequence

RECORD = struct.Struct("<qI84s")
RECORD_BYTES = RECORD.size
"""Fixed, so that the exchange itself can never be one of different sizes."""
_TEXT_BYTES = 84


class Call(msgspec.Struct, frozen=True):
    """A collective that a mesh rank is about to make, or the end of its chunk."""

    chunk_index: int
    count: int
    """Collectives of the chunk, this one included; at its end all of them."""
    operation: str = ""
    """Name, dtype and shape: ``all_reduce float32[4, 8]``. Empty: the chunk has ended on this rank."""

    def to_bytes(self) -> bytes:
        """Return ``RECORD_BYTES`` bytes; a longer operation is cut and keeps its checksum."""
        text = self.operation.encode()
        if len(text) > _TEXT_BYTES:
            text = text[: _TEXT_BYTES - 9] + b"~%08x" % zlib.crc32(text)
        return RECORD.pack(self.chunk_index, self.count, text)

    @classmethod
    def from_bytes(cls, raw: bytes) -> Call:
        """Read another rank's record."""
        chunk_index, count, text = RECORD.unpack(raw)
        return cls(chunk_index, count, text.rstrip(b"\0").decode(errors="replace"))

    def __str__(self) -> str:
        if self.operation:
            return f"called {self.operation} as collective {self.count} of chunk {self.chunk_index}"
        return f"ended chunk {self.chunk_index} after {self.count}"


def difference(calls: Sequence[Call], ranks: Sequence[int]) -> tuple[str, str] | None:
    """Compare what the mesh ranks are about to do.

    Args:
        calls: One per mesh rank.
        ranks: Their global ranks, in the same order.

    Returns:
        ``None`` if all are the same; else what differs and what to check first, the same on every rank.
    """
    ranks_by_call: dict[Call, list[int]] = {}
    for call, rank in zip(calls, ranks, strict=True):
        ranks_by_call.setdefault(call, []).append(rank)
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
