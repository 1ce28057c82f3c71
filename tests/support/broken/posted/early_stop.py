import datetime

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))
rank = dist.get_rank()
best, bad = 1e9, 0
for epoch in range(6):
    loss = torch.tensor([1.0 / (epoch + 1)])
    dist.all_reduce(loss)
    mine = 1.0 if rank == 1 and epoch > 0 else 1.0 / (epoch + 1)
    bad = 0 if mine < best else bad + 1
    best = min(best, mine)
    if bad >= 2:
        print("early stopping", flush=True)
        break
dist.barrier()
dist.destroy_process_group()
