"""Functional collectives, called by their own names."""

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

total = funcol.all_reduce(torch.ones(4), "sum", dist.group.WORLD)
assert funcol.wait_tensor(total).sum() == 8
