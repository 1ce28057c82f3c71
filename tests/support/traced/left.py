"""A hang: the last rank leaves before the barrier of the others."""

from datetime import timedelta

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=timedelta(seconds=3))
dist.all_reduce(torch.ones(4))
store = dist.distributed_c10d._get_default_store()
if dist.get_rank() < 2:
    work = dist.all_reduce(torch.ones(2), async_op=True)  # begun, before the last rank may leave
    store.set(f"rank {dist.get_rank()} has the sum", "")
    work.wait()
else:  # it would close connections over which the others still get the sum
    store.wait(["rank 0 has the sum", "rank 1 has the sum"])
