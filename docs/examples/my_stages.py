"""The smallest pair of stages: stage 0 makes numbers, the mesh scales and sums them, rank 0 reads them back.

Run it from this folder::

    ppwork run --stage0 my_stages:Counter --stage1 my_stages:Scaler --chunks 6 --mesh-size 2
"""

from __future__ import annotations

import torch

from ppwork.stage import Emission, StageContext, Tensors


class Counter:
    """Stage 0: chunk k is a vector full of k."""

    def __init__(self, context: StageContext) -> None:
        self.total = 0.0

    def encode(self, chunk_index: int) -> Tensors:
        return {"x": torch.full((4,), float(chunk_index))}

    def context_frames(self, chunk_index: int) -> Tensors:
        return {"context.x": torch.full((4,), float(chunk_index - 1))}

    def decode(self, chunk_index: int, tensors: Tensors) -> Emission:
        self.total += tensors["x"].sum().item()
        return Emission(tensors["x"], {"mean": tensors["x"].mean().item()})

    def finish(self) -> dict[str, object]:
        return {"total": self.total}


class Scaler:
    """Stage 1: every mesh rank adds its share of 10 x; the cache counts chunks since the last hard cut."""

    def __init__(self, context: StageContext) -> None:
        self.tp = context.tp
        self.seen = 0

    def reset_cache(self) -> None:
        self.seen = 0

    def recompute(self, context_frames: Tensors) -> None:
        self.seen = 1

    def step(self, tensors: Tensors, step_index: int, num_steps: int) -> Tensors:
        share = tensors["x"] * 10 / self.tp.size
        self.seen += step_index == num_steps - 1
        return {"x": self.tp.all_reduce(share) + self.seen}
