"""The fixed 64 bytes that every message starts with, and the limits that a receiver checks them against.

The header has its own checksum, because its sizes decide which receives are posted: a flipped bit in a size
would make the backend abort the process (gloo checks nothing). Every size is checked against ``Limits``
before it is used, and nothing is allocated here.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from enum import IntEnum

import msgspec

from ppwork.errors import RemoteProtocolError
from ppwork.protocol.envelope import Ids, PPAction

MAGIC = b"PPWK"
VERSION = 1
HEADER = struct.Struct("<4sHBBHHIIIqqqQII")
HEADER_BYTES = HEADER.size
_ALL_BUT_CRC, _CRC = struct.Struct(HEADER.format[:-1]), struct.Struct("<I")
NO_SCHEMA = 0
FLAG_NEW_SCHEMA = 1


class Kind(IntEnum):
    """Which of the two messages a frame begins."""

    ENVELOPE = 1
    RESULT = 2


KINDS = {int(kind): kind for kind in Kind}
ACTIONS = {int(action): action for action in PPAction}


@dataclass(frozen=True)
class Limits:
    """Sizes that a receiver accepts; part of the plan, so both ends agree."""

    frame_bytes: int = 8192
    max_body_bytes: int = 1 << 20
    max_tensors: int = 256
    max_message_bytes: int = 1 << 30


class Header(msgspec.Struct, frozen=True, gc=False):
    """The fixed part of a frame, after its checks."""

    kind: Kind
    action: PPAction
    ids: Ids
    new_schema: bool
    schema_id: int
    num_tensors: int
    body_bytes: int
    payload_bytes: int
    """Bytes of all tensors together."""
    body_crc: int

    def overflow_bytes(self, limits: Limits) -> int:
        """Bytes of the body that did not fit into the frame and come in a second transfer."""
        return max(0, HEADER_BYTES + self.body_bytes - body_room(limits.frame_bytes))


def body_room(frame_bytes: int) -> int:
    """Return how many bytes of a frame the header and body may fill; the rest is for small tensors."""
    return max(frame_bytes // 4, 2 * HEADER_BYTES)


def pack_header(header: Header) -> bytes:
    """Return the ``HEADER_BYTES`` bytes of a header; the last field is the header's checksum."""
    ids, flags = header.ids, FLAG_NEW_SCHEMA if header.new_schema else 0
    packed = _ALL_BUT_CRC.pack(
     MAGIC, VERSION, header.kind, header.action, flags, header.num_tensors, header.schema_id,
     header.body_bytes, 0,  # reserved
     ids.call_id, ids.chunk_index, ids.cache_epoch, header.payload_bytes, header.body_crc,
    )  # fmt: skip
    return packed + _CRC.pack(zlib.crc32(packed))


def unpack_header(frame: bytes | bytearray | memoryview, limits: Limits) -> Header:
    """Check and return the header of a frame; see ``Decoder.header``."""
    if len(frame) != limits.frame_bytes:
        raise refused(
            f"A frame of {len(frame)} bytes came; {limits.frame_bytes} were agreed.",
            "frame_bytes in both plans",
        )
    head = bytes(frame[:HEADER_BYTES])
    (
     magic, version, kind, action, flags, num_tensors, schema_id, body_bytes, reserved,
     call_id, chunk_index, cache_epoch, payload_bytes, body_crc, header_crc,
    ) = HEADER.unpack(head)  # fmt: skip
    ids = Ids(call_id, chunk_index, cache_epoch)
    is_ours = magic == MAGIC and version == VERSION and zlib.crc32(head[:-4]) == header_crc
    if not is_ours:
        raise _not_ours(magic, version)
    problem = (
        _header_problem(kind, action, flags, reserved, schema_id)
        or ids_problem(action, ids)
        or _size_problem(num_tensors, body_bytes, payload_bytes, limits)
    )
    if problem is not None:
        raise refused(problem, "do both ends run the same ppwork and plan?", ids)
    is_new = bool(flags & FLAG_NEW_SCHEMA)
    return Header(
        KINDS[kind], ACTIONS[action], ids, is_new, schema_id, num_tensors, body_bytes, payload_bytes, body_crc
    )


def _not_ours(magic: bytes, version: int) -> RemoteProtocolError:
    if magic != MAGIC:
        return refused(f"A frame started with {magic!r}, not {MAGIC!r}.", "does anybody else use this group?")
    if version != VERSION:
        return refused(
            f"A frame of wire version {version} arrived, but this build reads version {VERSION}.",
            "compare the ppwork version lines of both logs",
        )
    return refused("The header's checksum was wrong.", "memory or network of the peer")


def _size_problem(num_tensors: int, body_bytes: int, payload_bytes: int, limits: Limits) -> str | None:
    for value, limit, what in (
        (num_tensors, limits.max_tensors, "tensors"),
        (body_bytes, limits.max_body_bytes, "bytes of body"),
        (payload_bytes, limits.max_message_bytes, "bytes of tensors"),
    ):
        if value > limit:
            return f"The header announced {value} {what}; {limit} are allowed."
    return None


def ids_problem(action: int, ids: Ids) -> str | None:
    """Say why these ids cannot travel with this action, or ``None`` if they can; both ends call this."""
    # A terminal notice carries the last ids that passed; a rank that fails before the first call has none.
    first_call = -1 if action == PPAction.ERROR else 0
    if ids.call_id < first_call or ids.chunk_index < -1 or ids.cache_epoch < 0:
        return "The header had a negative id."
    if max(ids.call_id, ids.chunk_index, ids.cache_epoch) >= 1 << 63:
        return "The header had an id of more than 63 bits."
    return None


def _header_problem(kind: int, action: int, flags: int, reserved: int, schema_id: int) -> str | None:
    if kind not in KINDS:
        return f"The header had the unknown kind {kind}."
    if action not in ACTIONS:
        return f"The header had the unknown action {action}."
    if flags & ~FLAG_NEW_SCHEMA or reserved:
        return f"The header had unknown flags {flags:#x} or reserved bits {reserved:#x}."
    if flags & FLAG_NEW_SCHEMA and schema_id == NO_SCHEMA:
        return "The header announced a new schema without an id."
    return None


def refused(what: str, check_first: str, ids: Ids | None = None) -> RemoteProtocolError:
    """Return the error for a refused message, with the message's ids if they have been read."""
    return RemoteProtocolError(what, where={} if ids is None else ids.where(), check_first=check_first)
