import datetime

import torch
import torch.distributed as dist


def save(state):
    parts = [None] * dist.get_world_size()
    dist.all_gather_object(parts, state)
    torch.save(parts, "/dev/null")


dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))
weights = torch.ones(4)
dist.all_reduce(weights)
if dist.get_rank() == 0:
    save({"weights": weights})
dist.barrier()
dist.destroy_process_group()
