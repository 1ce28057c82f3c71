import datetime

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))
rank, world = dist.get_rank(), dist.get_world_size()
mine = torch.zeros(4)
if rank == 0:
    parts = list(torch.ones(2, 4))
    dist.scatter(mine, parts, src=0)
else:
    dist.scatter(mine, src=0)
print(mine, flush=True)
dist.destroy_process_group()
