"""Programs that hang, one by its name: ``programs.py NAME`` on three ranks.

Each is the mistake that somebody made; its docstring says the truth: who, and in which line's call. Their
bound is ``BOUND_S``, 2 s if it is not set.
"""

import os
import sys
import time
from datetime import timedelta

import torch
import torch.distributed as dist

BOUND = timedelta(seconds=float(os.environ.get("BOUND_S", "2")))
dist.init_process_group("gloo", timeout=BOUND)
rank, x = dist.get_rank(), torch.ones(4)
dist.all_reduce(x)


def left_out_group():
    """Rank 2 never makes the second group."""
    if rank < 2:
        group = dist.new_group([0, 1, 2], timeout=BOUND)
        dist.all_reduce(x, group=group)
    dist.all_reduce(x)


def other_members():
    """Rank 0 makes another group than the others."""
    group = dist.new_group([0, 1] if rank == 0 else [1, 2], timeout=BOUND)
    if rank == 1:
        dist.all_reduce(x, group=group)
    dist.barrier()


def circle():
    """Ranks 0 and 1 await each other's message, and send after that."""
    if rank < 2:
        dist.recv(x, 1 - rank)
        dist.send(x, 1 - rank)
    dist.barrier()


def other_tag():
    """Rank 0 sends with tag 1, rank 1 awaits tag 2."""
    if rank == 0:
        dist.send(x, 1, tag=1)
    if rank == 1:
        dist.recv(x, 0, tag=2)
    dist.barrier()


def other_source():
    """Rank 1 awaits rank 2, and rank 0 sent to it."""
    if rank == 0:
        dist.send(x, 1)
    if rank == 1:
        dist.recv(x, 2)
    dist.barrier()


def only_rank_0():
    """Only rank 0 comes to the barrier of the checkpoint."""
    if rank == 0:
        dist.barrier()
    dist.all_reduce(x)
    dist.all_reduce(x)


def skipped():
    """Rank 1 swallows an error of its own and with it one sum."""
    for step in range(3):
        try:
            numbers = [float("bad batch") if rank == 1 and step == 1 else 1.0]
            dist.all_reduce(torch.tensor(numbers))
        except ValueError:
            pass
    dist.barrier()


def other_root():
    """Rank 1 broadcasts from another root."""
    for _ in range(3):
        dist.broadcast(x, src=1 if rank == 1 else 0)
    dist.barrier()


def two_orders():
    """Rank 0 uses two groups in another order than the others."""
    first, second = dist.new_group(timeout=BOUND), dist.new_group(timeout=BOUND)
    for group in (second, first) if rank == 0 else (first, second):
        dist.all_reduce(x, group=group)
    dist.barrier()


def late():
    """Rank 2 loads for longer than the others' bound."""
    if rank == 2:
        time.sleep(60)
    dist.barrier()


def uneven():
    """Rank 2 has one batch fewer under DDP."""
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
    for _ in range(2 if rank == 2 else 3):
        model(torch.ones(4, 8)).sum().backward()
    dist.barrier()


def uneven_fsdp():
    """Rank 0 has one batch fewer under FSDP."""
    from torch.distributed.fsdp import fully_shard

    mesh = dist.init_device_mesh("cpu", (3,))
    model = fully_shard(torch.nn.Linear(9, 3), mesh=mesh)
    for _ in range(1 if rank == 0 else 2):
        model(torch.ones(3, 9)).sum().backward()
    dist.barrier()


def destroyed_early():
    """Rank 2 destroys its groups one step early."""
    for step in range(3):
        if rank == 2 and step == 2:
            dist.destroy_process_group()
            time.sleep(60)
        dist.all_reduce(x)


def lost_handle():
    """Rank 0 drops the handle of what it sends, and rank 1 awaits it."""
    if rank == 0:
        dist.isend(torch.ones(1 << 20), 1)
        time.sleep(60)
    if rank == 1:
        dist.recv(torch.empty(1 << 20), 0)
    dist.barrier()


globals()[sys.argv[1]]()
