import datetime

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
rank, world = dist.get_rank(), dist.get_world_size()
x = torch.ones(4)
if rank == 0:
    dist.send(x, dst=(rank + 2) % world)
else:
    dist.recv(x, src=0)
dist.destroy_process_group()
