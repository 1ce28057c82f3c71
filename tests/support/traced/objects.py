"""Objects: each of these calls makes several others, which are its own matter."""

import torch.distributed as dist

rank = dist.get_rank()
things = [None, None]
dist.all_gather_object(things, {"rank": rank})
dist.broadcast_object_list(things, src=0)
dist.gather_object(rank, things if rank == 0 else None, dst=0)
dist.scatter_object_list([None], [1, 2] if rank == 0 else None, src=0)
if rank == 0:
    dist.send_object_list([1, "two"], dst=1)
else:
    dist.recv_object_list([None, None], src=0)
