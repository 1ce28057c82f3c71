"""Stages that split their model by torch's own tensor parallelism; its import takes long, so a file apart."""

from __future__ import annotations

import torch
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from toy_stages import Scaler


class GivesDTensor(Scaler):
    def step(self, tensors, step_index, num_steps):
        return {"x": DTensor.from_local(tensors["small"], self.tp.device_mesh, [Replicate()])}


class Sharded(Scaler):
    """A block of a model, split by torch's own tensor parallelism."""

    def __init__(self, context):
        super().__init__(context)
        torch.manual_seed(1)
        block = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.GELU(), torch.nn.Linear(8, 4))
        plan = {"0": ColwiseParallel(), "2": RowwiseParallel()}
        self.block = parallelize_module(block, context.tp.device_mesh, plan)
        self.table = distribute_tensor(torch.arange(8.0).view(4, 2), context.tp.device_mesh, [Shard(0)])

    def step(self, tensors, step_index, num_steps):
        total = self.table.sum().full_tensor()
        return {"small": self.block(tensors["small"]) + total, "large": tensors["large"]}
