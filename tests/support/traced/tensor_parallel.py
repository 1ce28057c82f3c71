"""Tensor parallelism by DTensor: a block whose first layer is cut by columns, its second by rows."""

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

torch.manual_seed(0)
mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
block = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 8))
block = parallelize_module(block, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    block(torch.ones(4, 8)).sum().backward()
    optimizer.step()
