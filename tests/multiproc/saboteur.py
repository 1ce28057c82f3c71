"""A rank 0 that goes wrong on the wire at its third chunk: ``saboteur.py HOW RUN_DIR``."""

from __future__ import annotations

import struct
import sys
import zlib
from pathlib import Path

import torch
from msgspec.structs import replace

from ppwork import header, wire, worker
from ppwork.envelope import ChunkPlan, Ids, PPAction

AT_CHUNK = 2


def main(how: str, run_dir: Path) -> int:
    if how in ("version", "checksum", "oversized"):
        wire.pack_header = lambda h: spoil(how, h)
    else:
        encode = wire.Encoder.encode
        wire.Encoder.encode = lambda self, message, specs: encode(
            self, lie(how, message), specs, check_plan=False
        )
    return worker.main(run_dir)


def spoil(how: str, head: header.Header) -> bytes:
    if head.action is not PPAction.INFER or head.ids.chunk_index != AT_CHUNK:
        return header.pack_header(head)
    if how == "oversized":
        return header.pack_header(replace(head, payload_bytes=1 << 40))
    packed = bytearray(header.pack_header(head))
    if how == "version":
        struct.pack_into("<H", packed, 4, 99)
        packed[-4:] = struct.pack("<I", zlib.crc32(packed[:-4]))
    else:
        packed[20] ^= 1
    return bytes(packed)


def lie(how: str, message):
    if message.action is not PPAction.INFER or message.ids.chunk_index != AT_CHUNK:
        return message
    if how == "calls":
        return replace(message, plan=ChunkPlan(1, 5))
    ids = Ids(message.ids.call_id + 1, message.ids.chunk_index, message.ids.cache_epoch)
    return replace(message, ids=ids)


if __name__ == "__main__":
    torch.set_num_threads(1)
    sys.exit(main(sys.argv[1], Path(sys.argv[2])))
