"""Rank 1 makes one sum more than the others, which have ended well by then.

At once: torch aborts an ordinary exit with the group alive at times (SIGABRT in place of code 0).
"""

import os

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
for _ in range(2):
    dist.all_reduce(torch.ones(4))
if dist.get_rank() != 1:
    os._exit(0)
dist.all_reduce(torch.ones(4))
dist.destroy_process_group()
