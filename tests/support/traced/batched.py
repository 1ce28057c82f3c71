"""Messages in a batch, both ways at once."""

import torch
import torch.distributed as dist

other = 1 - dist.get_rank()
ops = [dist.P2POp(dist.isend, torch.ones(5), other), dist.P2POp(dist.irecv, torch.empty(5), other)]
for _ in range(2):
    for work in dist.batch_isend_irecv(ops):
        work.wait()
