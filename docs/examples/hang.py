"""A job of plain torch.distributed that hangs: one of three ranks has a batch less than the others.

torchrun --standalone --nproc-per-node 3 hang.py
"""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
rank = dist.get_rank()
batches = 5 if rank == 2 else 6
for batch in range(batches):
    loss = torch.full((4,), float(batch))
    dist.all_reduce(loss)
dist.barrier()
print("rank", rank, "is done")
