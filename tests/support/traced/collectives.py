"""Each collective once, as calls that come back when they are done."""

import torch
import torch.distributed as dist

rank, size = dist.get_rank(), dist.get_world_size()
x, y = torch.ones(4), torch.empty(4)
parts = [torch.empty(4) for _ in range(size)]
dist.all_reduce(x)
dist.all_reduce(x, op=dist.ReduceOp.MAX)
dist.broadcast(x, 0)
dist.reduce(x, dst=1)
dist.all_gather(parts, x)
dist.gather(x, parts if rank == 0 else None, dst=0)
dist.scatter(y, parts if rank == 1 else None, src=1)
dist.reduce_scatter(y, parts)
dist.all_to_all_single(y, x)
dist.barrier()
dist.monitored_barrier()
