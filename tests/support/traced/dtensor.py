"""A DTensor from one placement to another: functional collectives, called inside torch."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
sharded = distribute_tensor(torch.arange(8.0), mesh, [Shard(0)])
assert sharded.redistribute(mesh, [Replicate()]).to_local().sum() == sharded.sum().full_tensor()
