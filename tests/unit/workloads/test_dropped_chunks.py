"""Stage 0 of the shipped workload when a flush drops chunks: nothing is kept for them."""

import torch

from ppwork.plan import Plan
from ppwork.stage import NoTensorParallel, StageContext
from ppwork.workloads.denoiser import VideoSource


def test_nothing_is_kept_for_chunks_that_never_come_back():
    plan = Plan(chunks=6, options={"width": 64, "height": 48, "frames_per_chunk": 2})
    source = VideoSource(StageContext(plan, torch.device("cpu"), NoTensorParallel()))
    chunks = [source.encode(k) for k in range(5)]
    for k in (0, 3):  # 1 and 2 were dropped
        source.decode(k, chunks[k])
    assert list(source._in_flight) == [4]
    source.decode(4, chunks[4])
    assert not source._in_flight
    assert source.finish()["frames"] == 6
