"""Collectives with handles, two of them on their way at the same time."""

import torch
import torch.distributed as dist

x, y = torch.ones(1000), torch.ones(1000)
first = dist.all_reduce(x, async_op=True)
second = dist.broadcast(y, src=0, async_op=True)
first.wait()
second.wait()
dist.barrier(async_op=True).wait()
