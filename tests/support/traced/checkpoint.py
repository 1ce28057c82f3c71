"""A checkpoint of sharded weights, written and read by both ranks."""

import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

folders = [tempfile.mkdtemp(prefix="ppwork-") if dist.get_rank() == 0 else None]
dist.broadcast_object_list(folders, src=0)
mesh = init_device_mesh("cpu", (2,))
state = {"weight": distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])}
dcp.save(state, checkpoint_id=folders[0])
state["weight"].to_local().zero_()
dcp.load(state, checkpoint_id=folders[0])
assert state["weight"].full_tensor().tolist() == list(range(8))
