import datetime
import os
import tempfile

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=8))
rank = dist.get_rank()
path = os.path.join(tempfile.gettempdir(), f"ckpt-{os.getppid()}-{rank}.pt")
torch.save({"w": torch.ones(1000)}, path)
if rank == 1:
    os.truncate(path, 2000)
try:
    state = torch.load(path)
finally:
    os.unlink(path)
dist.all_reduce(state["w"])
dist.destroy_process_group()
