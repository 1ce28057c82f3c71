"""Calls that only operators tell of: methods of a group, DDP's buckets, a compiled function."""

import threading

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as funcol

dist.init_process_group("gloo")
group, rank = dist.group.WORLD, dist.get_rank()
x = torch.ones(4)
group.allreduce(x).wait()
if rank == 0:
    group.send([x], 1, 5).wait()
    helper = threading.Thread(target=dist.send, args=(x, 1))
    helper.start()
    helper.join()
else:
    group.recv([x], 0, 5).wait()
    dist.recv(x, 0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(16, 4))
model(torch.ones(3, 16)).sum().backward()


@torch.compile(backend="eager")
def doubled(x: torch.Tensor) -> torch.Tensor:
    y = funcol.wait_tensor(funcol.all_reduce(x * 2, "sum", group))
    dist.all_reduce(y)
    return y + 1


assert doubled(torch.ones(8)).sum() == 72
dist.barrier()
dist.destroy_process_group()
