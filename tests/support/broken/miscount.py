"""Rank 0 makes one all_reduce fewer than the others and is in the barrier when they still sum."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
group = dist.new_group(timeout=timedelta(seconds=float(sys.argv[1])))
steps = 2 if dist.get_rank() == 0 else 3
for _ in range(steps):
    dist.all_reduce(torch.ones(4), group=group)
dist.barrier(group=group)
dist.destroy_process_group()
