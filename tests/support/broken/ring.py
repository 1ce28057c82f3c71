"""Every rank sends to the next one before it receives from the one before: nobody receives."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=float(sys.argv[1])))
rank, world_size = dist.get_rank(), dist.get_world_size()
mine, other = torch.ones(1000), torch.empty(1000)
dist.barrier()
dist.send(mine, (rank + 1) % world_size)
dist.recv(other, (rank - 1) % world_size)
dist.destroy_process_group()
