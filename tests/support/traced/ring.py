"""A hang: every rank awaits what its neighbour would send after that."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=3))
rank, size = dist.get_rank(), dist.get_world_size()
x = torch.ones(4)
dist.recv(x, (rank - 1) % size)
dist.send(x, (rank + 1) % size)
