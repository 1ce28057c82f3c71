"""A run on CUDA made by hand: the lanes of the streams beside those of the host, three chunks in flight.

One chunk each 100 ms; the host launches early, the device works later. From the start of a chunk, in ms:

    rank 0    compute encodes 0-10, down_pg sends 10-60, up_pg receives 200-262, compute decodes 262-280
    leader    down_pg receives 52-60, mesh_pg broadcasts 60-70, compute generates 160-258, up_pg sends 258-262
    follower  mesh_pg receives 40-70, compute generates 160-256

So of rank 0's send 42 ms are waiting (the leader begins at 52) and 8 ms moving, of its receive 58 and 4, of
the follower's receive 20 and 10. The generator's work on the chunk before ends at 158: the tensors are there
at 70, hidden. From chunk ``late_from`` on NCCL holds the broadcast back behind a kernel: it ends at 160, and
the follower's half begins at 65. Its span lies over the generator's work, and it is not hidden.
"""

from __future__ import annotations

from made_runs import at

from ppwork.records.spans import DEVICE_LANE, Instant, Span

PERIOD = 100


def made_on_cuda(chunks=8, *, mesh_size=2, late_from=10**9):
    """Return the entries of every rank; the clocks of the devices agree."""
    entries = {rank: [] for rank in range(mesh_size + 1)}
    for k in range(chunks):
        begin, (joins, passed) = k * PERIOD, (65, 160) if k >= late_from else (40, 70)
        ids = {"call_id": k, "chunk_index": k, "cache_epoch": 0}

        def span(rank, lane, name, start, end, ids=ids, begin=begin):
            entries[rank].append(Span(name, lane, at(begin + start), at(begin + end), **ids))

        def instant(name, moment, rank=0, lane="main", ids=ids, begin=begin, **figures):
            entries[rank].append(Instant(name, lane, at(begin + moment), figures=figures, **ids))

        # The host: launches, and the frames that announce the tensors.
        span(0, "main", "encode", -2, -1)
        span(0, "main", "preflight", -1, -0.5)
        instant("envelope.send", -0.5)
        span(0, "down_pg", "send", -0.4, 0)
        span(1, "down_pg", "receive", -80, 0)
        instant("mesh.broadcast", 0.1, rank=1)
        span(1, "mesh_pg", "broadcast", 0.1, 0.5)
        span(1, "main", "generate", 62, 66)
        instant("result.send", 258.5, rank=1)
        span(1, "up_pg", "send_result", 258.6, 259)
        span(0, "up_pg", "receive", 170, 259)
        instant("arrive", 259, lane="up_pg")
        span(0, "main", "decode", 259, 281)
        instant("emit", 281, stage1_ms=98.0)
        # The device.
        span(0, DEVICE_LANE, "encode", 0, 10, ids={"chunk_index": k})
        span(0, "cuda:down_pg", "send", 10, 60)
        span(1, "cuda:down_pg", "receive", 52, 60)
        span(1, "cuda:mesh_pg", "broadcast", 60, passed)
        span(1, DEVICE_LANE, "generate", 160, 258)
        span(1, "cuda:up_pg", "send_result", 258, 262)
        span(0, "cuda:up_pg", "receive", 200, 262)
        span(0, DEVICE_LANE, "decode", 262, 280)
        for rank in range(2, mesh_size + 1):
            span(rank, "mesh_pg", "receive", -80, 0.5)
            span(rank, "main", "generate", 1, 4)
            span(rank, "cuda:mesh_pg", "receive", joins, passed)
            span(rank, DEVICE_LANE, "generate", 160, 256)
    return entries
