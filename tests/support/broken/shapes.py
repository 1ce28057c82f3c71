"""Rank 1 sums more numbers than the others."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()  # all have joined: rank 0 would be aborted while another one still does
length = 5000 if dist.get_rank() == 1 else 4000
dist.all_reduce(torch.ones(length))
dist.barrier()
dist.destroy_process_group()
