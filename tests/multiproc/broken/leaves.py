"""Rank 2 finds nothing to do and exits with code 0 while the others sum."""

import sys

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 2:
    sys.exit(0)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
