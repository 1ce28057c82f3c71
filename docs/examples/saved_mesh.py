"""A mesh that saves its weights and its cache after a chunk, and one that is restored from them and goes on.

The request travels with the chunk, so every mesh rank saves after the same one, whatever is in flight::

    stages="--stage0 saved_mesh:Numbers --stage1 saved_mesh:Attention"
    ppwork run $stages --mesh-size 2 --chunks 3 -o folder=saved -o save_at=2
    ppwork run $stages --mesh-size 2 --chunks 3 -o folder=saved -o first=3
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed.checkpoint as dcp

from ppwork.stage import Chunk, Emission, StageContext, Tensors

WIDTH, HEAD, KEPT = 4, 2, 3


class Numbers:
    """Stage 0: begins with the chunk that comes after the checkpoint, and says after which one to save."""

    def __init__(self, context: StageContext) -> None:
        self.first = context.plan.options.get("first", 0)
        self.save_at = context.plan.options.get("save_at")

    def encode(self, chunk_index: int) -> Chunk:
        number = self.first + chunk_index
        x = torch.sin(torch.arange(float(WIDTH)) + number)
        return Chunk({"x": x}, metadata={"save": number == self.save_at})

    def decode(self, chunk_index: int, tensors: Tensors) -> Emission:
        return Emission(tensors["x"])


class Attention:
    """Stage 1: a head on each rank. What only this rank has gets a name that only this rank has."""

    def __init__(self, context: StageContext) -> None:
        self.tp, options = context.tp, context.plan.options
        self.folder, rank = options["folder"], self.tp.group_rank
        torch.manual_seed(rank if not options.get("first") else 100 + rank)
        self.weights, self.cache = torch.randn(WIDTH, HEAD), torch.zeros(KEPT, HEAD)
        self.state = {f"weights {rank}": self.weights, f"cache {rank}": self.cache}
        if options.get("first"):
            dcp.load(self.state, checkpoint_id=self.folder, process_group=self.tp.group)

    def step(
        self, tensors: Tensors, step_index: int, num_steps: int, metadata: Mapping[str, Any]
    ) -> dict[str, torch.Tensor]:
        query = tensors["x"] @ self.weights
        self.cache.copy_(torch.cat([self.cache[1:], query[None]]))  # in place: the state has this tensor
        heads = torch.zeros(self.tp.size, HEAD)
        heads[self.tp.group_rank] = torch.softmax(self.cache @ query, dim=0) @ self.cache
        self.tp.all_reduce(heads)
        if metadata["save"]:
            dcp.save(self.state, checkpoint_id=self.folder, process_group=self.tp.group)
        return {"x": heads.flatten()}
