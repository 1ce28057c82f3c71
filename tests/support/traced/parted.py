"""A hang: after some collectives one rank reduces where the other broadcasts."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=3))
x = torch.ones(4)
for _ in range(6):
    dist.all_reduce(x)
if dist.get_rank() == 0:
    dist.all_reduce(x)
    dist.all_reduce(x)
else:
    dist.broadcast(x, 0)
