"""Runs made by hand, one chunk each 100 ms, so that every number in a picture can be checked on paper.

From the start of a chunk, in ms: encode 0-10, preflight 10-11, send 11-13; leader: receive to 13, broadcast
13-15, generate 15-80, result 80-82; follower: receive to 15, generate 15-78; rank 0: receive 13-83, decode
83-99, emit 99.
Overlapped, decode is 120-136 (while the next chunk is generated) and emit 136. Ends with a SHUTDOWN.
"""

import msgspec

from ppwork.records.spans import Instant, Span

MS = 1_000_000
ZERO = 5_000 * MS
PERIOD = 100


def made(chunks=8, *, overlapped=False, mesh_size=2, cut_at=10**9, late_from=10**9, late_ms=0):
    """Return the entries of every rank; from chunk ``late_from`` on, all is ``late_ms`` later."""
    entries = {rank: [] for rank in range(mesh_size + 1)}
    decode = 120 if overlapped else 83
    for k in range(chunks):
        begin = k * PERIOD + (late_ms if k >= late_from else 0)
        ids = {"call_id": k, "chunk_index": k, "cache_epoch": int(k >= cut_at)}

        def span(rank, lane, name, start, end, begin=begin, ids=ids):
            entries[rank].append(Span(name, lane, at(begin + start), at(begin + end), **ids))

        def instant(rank, name, moment, begin=begin, ids=ids, **figures):
            entries[rank].append(Instant(name, "main", at(begin + moment), figures=figures, **ids))

        span(0, "main", "encode", 0, 10)
        span(0, "main", "preflight", 10, 11)
        instant(0, "envelope.send", 11)
        span(0, "down_pg", "send", 11, 13)
        span(0, "up_pg", "receive", 17 if overlapped else 13, decode - 3 if overlapped else decode)
        span(0, "main", "decode", decode, decode + 16)
        instant(0, "emit", decode + 16, stage1_ms=65.0)
        span(1, "down_pg", "receive", -18, 13)
        instant(1, "mesh.broadcast", 13)
        span(1, "mesh_pg", "broadcast", 13, 15)
        span(1, "main", "generate", 15, 80)
        instant(1, "result.send", 80)
        span(1, "up_pg", "send_result", 80, 82)
        for rank in range(2, mesh_size + 1):
            span(rank, "mesh_pg", "receive", -22, 15)
            span(rank, "main", "generate", 15, 78)
    end = begin + 140
    bye = {"call_id": chunks, "chunk_index": chunks - 1, "cache_epoch": 0}
    entries[0].append(Span("preflight", "main", at(end), at(end + 1), **bye))
    entries[0].append(Span("send", "down_pg", at(end + 1), at(end + 2), **bye))
    entries[1].append(Span("receive", "down_pg", at(end - 30), at(end + 2), **bye))
    return entries


def at(ms):
    return ZERO + round(ms * MS)


def moved(entry, by_ns):
    """Return the entry with all its times later."""
    times = {
        name: getattr(entry, name) + by_ns
        for name in ("start_ns", "end_ns", "at_ns")
        if name in entry.__struct_fields__
    }
    return msgspec.structs.replace(entry, **times)
