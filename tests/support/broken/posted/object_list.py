import datetime

import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=6))
if dist.get_rank() == 0:
    objects = [{"lr": 0.1}, "sgd"]
else:
    objects = [None]
dist.broadcast_object_list(objects, src=0)
print(objects, flush=True)
dist.barrier()
dist.destroy_process_group()
