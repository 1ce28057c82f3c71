"""Rank 1 broadcasts from itself where the others broadcast from rank 0, which lets rank 2 go on to the sum."""

import sys
from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=float(sys.argv[1])))
numbers = torch.ones(4)
dist.broadcast(numbers, src=dist.get_rank() % 2)
dist.all_reduce(numbers)
dist.destroy_process_group()
