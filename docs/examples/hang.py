"""A job of plain torch.distributed that hangs: one rank has a batch less than the others.

torchrun --standalone --nproc-per-node 3 hang.py
"""

import torch
import torch.distributed as dist

dist.init_process_group("gloo")
rank = dist.get_rank()
batches = 5 if rank == 2 else 6
for batch in range(batches):
    loss = torch.full((4,), float(batch))
    dist.all_reduce(loss)
dist.barrier()
print("rank", rank, "is done")
