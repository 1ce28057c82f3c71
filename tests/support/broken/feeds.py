"""Rank 0 feeds rank 1, which shares all with rank 2 in a group; of those two one leaves the common way."""

import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

bound = timedelta(seconds=float(sys.argv[1]))
dist.init_process_group("gloo", timeout=bound)
rank = dist.get_rank()
mesh = dist.new_group([1, 2], timeout=bound)
x = torch.ones(4)
for step in range(3):
    if step == 1 and sys.argv[2] == "sleeps" and rank == 2:
        time.sleep(120)
    if step == 1 and sys.argv[2] == "differs" and rank == 2:
        dist.barrier(group=mesh)
    if rank == 0:
        dist.send(x, 1)
        dist.recv(x, 1)
    else:
        if rank == 1:
            dist.recv(x, 0)
        dist.all_gather([torch.empty(4), torch.empty(4)], x, group=mesh)
        if rank == 1:
            dist.send(x, 0)
dist.destroy_process_group()
