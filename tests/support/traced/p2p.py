"""Blocking messages: by global rank, by group rank, with tags, from anybody."""

import torch
import torch.distributed as dist

x = torch.arange(4.0)
if dist.get_rank() == 0:
    dist.send(x, 1)
    dist.send(x, dst=1, tag=7)
    dist.send(x, group_dst=1)
    dist.recv(x)
    assert dist.recv(x, None) == 1
else:
    dist.recv(x, 0)
    dist.recv(x, src=0, tag=7)
    dist.recv(x, group_src=0)
    dist.send(x, 0)
    dist.send(x, 0)
