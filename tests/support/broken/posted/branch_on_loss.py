import datetime

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))
rank = dist.get_rank()
loss = 0.1 if rank % 2 else 3.0
x = torch.ones(4)
if loss > 1.0:
    dist.all_reduce(x)
else:
    dist.broadcast(x, src=1)
dist.barrier()
dist.destroy_process_group()
