"""Groups: made by all, used by their members, named by group rank; one rank is not in the second."""

import torch
import torch.distributed as dist

both = dist.new_group([0, 1], group_desc="both")
alone = dist.new_group([1])
x = torch.ones(2)
dist.broadcast(x, group_src=1, group=both)
dist.all_reduce(x, group=both)
if dist.get_rank() == 1:
    dist.all_reduce(x, group=alone)
dist.barrier(group=both)
