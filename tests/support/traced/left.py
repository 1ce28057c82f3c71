"""A hang: the last rank leaves before the barrier of the others."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=3))
dist.all_reduce(torch.ones(4))
if dist.get_rank() < 2:
    dist.all_reduce(torch.ones(2), async_op=True).wait()
