"""Rank 1 raises between two collectives; the others wait for it in the second."""

import torch
import torch.distributed as dist


def load(step):
    if step == 1 and dist.get_rank() == 1:
        raise ValueError("bad sample in shard 1")
    return torch.ones(4)


dist.init_process_group("gloo")
for step in range(3):
    dist.all_reduce(load(step))
dist.destroy_process_group()
