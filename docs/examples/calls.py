"""Calls that wait for each other: what `ppwork trace docs/examples/calls.py --nproc 3` draws.

Rank 0 sends, and rank 1 is late to receive. Rank 1 passes the tensor on and works before it waits for the
handle: the buffer is lent until then. Rank 1 comes last to the sum as well.
"""

import time

import torch
import torch.distributed as dist

MEGABYTE = 1 << 18
"""Elements of 4 bytes."""

dist.init_process_group("gloo")
rank = dist.get_rank()
data = torch.full((4 * MEGABYTE,), float(rank))
total = torch.ones(8)
for _ in range(2):
    if rank == 0:
        dist.send(data, dst=1)
        time.sleep(0.05)
    elif rank == 1:
        time.sleep(0.15)
        dist.recv(data, src=0)
        handle = dist.isend(data, dst=2)
        time.sleep(0.08)
        handle.wait()
        time.sleep(0.03)
    else:
        dist.recv(data, src=1)
        time.sleep(0.06)
    dist.all_reduce(total)
dist.destroy_process_group()
