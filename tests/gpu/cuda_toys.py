"""Stages that keep the device busy and the host free, and whose right answer is known in advance."""

from __future__ import annotations

import torch

from ppwork.stage import Emission


class CudaCounter:
    """Stage 0: chunk k is ``payload_mb`` megabytes of k, on the device."""

    def __init__(self, context):
        self.options, self.device = context.plan.options, context.device
        self.elements = int(self.options["payload_mb"] * (1 << 20)) // 4
        self.outputs = []

    def encode(self, chunk_index):
        torch.cuda._sleep(int(self.options["stage0_cycles"]))
        return {"payload": torch.full((self.elements,), float(chunk_index), device=self.device)}

    def context_frames(self, chunk_index):
        return {}

    def decode(self, chunk_index, tensors):
        payload = tensors["payload"]
        extremes = torch.stack([payload.min(), payload.max()]).cpu()
        self.outputs.append(extremes.tolist())
        return Emission(extremes)

    def finish(self):
        return {"outputs": self.outputs}


class CudaSum:
    """Stage 1: adds chunk k to the sum of those before it, late on the device and at once on the host.

    Two sums over the mesh per chunk, the second at its end: what is issued behind that hides nothing.
    """

    def __init__(self, context):
        self.options, self.tp = context.plan.options, context.tp
        self.sum = 0.0

    def reset_cache(self):
        self.sum = 0.0

    def recompute(self, context_frames):
        pass

    def step(self, tensors, step_index, num_steps):
        half = tensors["payload"] / 2
        for _ in range(2):
            torch.cuda._sleep(int(self.options["stage1_cycles"]) // 2)
            half = self.tp.all_reduce(half / self.tp.size)
        if step_index == 0:
            self.sum = self.sum + 2 * half
        return {"payload": self.sum}
