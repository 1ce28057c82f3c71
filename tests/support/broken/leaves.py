"""Rank 2 finds nothing to do and exits with code 0 while the others sum.

At once: torch aborts an ordinary exit with the group alive at times (SIGABRT in place of code 0).
"""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.all_reduce(torch.ones(4))
if dist.get_rank() == 2:
    os._exit(0)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
