import datetime

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))
rank = dist.get_rank()
for step in range(5):
    loss = torch.tensor(float("nan") if rank == 2 and step == 3 else 1.0)
    if torch.isnan(loss):
        print("skip", step, flush=True)
        continue
    grad = torch.ones(8)
    dist.all_reduce(grad)
dist.destroy_process_group()
