"""Messages with handles, three at a time each way, the receives waited for in another order."""

import torch
import torch.distributed as dist

other = 1 - dist.get_rank()
out, into = torch.ones(8), [torch.empty(8) for _ in range(3)]
receives = [dist.irecv(buffer, other, tag=tag) for tag, buffer in enumerate(into)]
sends = [dist.isend(out, other, tag=tag) for tag in range(3)]
for work in reversed(receives):
    work.wait()
for work in sends:
    work.wait()
