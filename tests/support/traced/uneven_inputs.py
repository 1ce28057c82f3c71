"""DDP on ranks with different numbers of batches, which its ``join`` makes up for."""

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(torch.nn.Linear(4, 1))
with model.join():
    for _ in range(2 + dist.get_rank()):
        model(torch.ones(2, 4)).sum().backward()
