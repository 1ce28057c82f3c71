"""A hang: what was sent has another tag than what is awaited."""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
x = torch.ones(4)
if dist.get_rank() == 0:
    dist.isend(x, 1, tag=3)
    dist.recv(x, 1)
else:
    dist.recv(x, 0, tag=4)
