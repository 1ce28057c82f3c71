"""Stages with the mistakes that one makes first with a model of one's own."""

from __future__ import annotations

import os
import signal

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from toy_stages import Counter, Scaler

from ppwork.stage import Emission

LATE = 3
"""Past the chunks of which all bytes are summed."""


class OneBuffer(Counter):
    """From a late chunk on a buffer that was made in encode, an inference tensor, is filled anew."""

    buffer = None

    def encode(self, chunk_index):
        if chunk_index < LATE:
            return super().encode(chunk_index)
        if self.buffer is None:
            self.buffer = torch.zeros(50_000)
        self.buffer.fill_(chunk_index)
        return {"small": torch.ones(4), "large": self.buffer}


class LaterDouble(Counter):
    """From a late chunk on another dtype than before."""

    def encode(self, chunk_index):
        tensors = super().encode(chunk_index)
        return {**tensors, "small": tensors["small"].double()} if chunk_index >= LATE else tensors


class Weights(Scaler):
    """Multiplies with weights of one dtype."""

    def step(self, tensors, step_index, num_steps):
        return {**tensors, "small": torch.ones(4, 4) @ tensors["small"]}


class Barrier(Counter):
    def encode(self, chunk_index):
        dist.barrier()
        return super().encode(chunk_index)


class OneOutput(Scaler):
    """A static output buffer, as a CUDA graph has; made in a late step, so an inference tensor."""

    steps, output = 0, None

    def step(self, tensors, step_index, num_steps):
        self.steps += 1
        if self.steps <= LATE:
            return super().step(tensors, step_index, num_steps)
        self.output = torch.zeros(50_000) if self.output is None else self.output.add_(1)
        return {"small": tensors["small"], "large": self.output}


class MakesMesh(Scaler):
    def __init__(self, context):
        super().__init__(context)
        self.mesh = init_device_mesh("cpu", (context.tp.size,))


class SumsInConstructor(Scaler):
    def __init__(self, context):
        super().__init__(context)
        dist.all_reduce(torch.ones(1))


class SumsOnWorld(Scaler):
    def step(self, tensors, step_index, num_steps):
        return {"x": functional.all_reduce(tensors["small"], "sum", dist.group.WORLD) + 0}


class OneRankSums(Scaler):
    def step(self, tensors, step_index, num_steps):
        result = super().step(tensors, step_index, num_steps)
        if self.tp.group_rank == 1:
            functional.all_reduce(tensors["small"], "sum", self.tp.group)
        return result


class Crashes(Scaler):
    """Like a kernel of one's own in C++."""

    def step(self, tensors, step_index, num_steps):
        if self.tp.group_rank == 1:
            os.kill(os.getpid(), signal.SIGSEGV)  # CRASH
        return super().step(tensors, step_index, num_steps)


class KeepsGraph(Scaler):
    """Its cache would hold the graph of every chunk."""

    def __init__(self, context):
        super().__init__(context)
        self.weight = torch.nn.Parameter(torch.ones(4))

    def step(self, tensors, step_index, num_steps):
        grad = float((tensors["small"] * self.weight).requires_grad)
        return {"small": torch.full((4,), grad), "large": tensors["large"]}


class WantsGraph(KeepsGraph):
    inference_mode = False


class Shown(Counter):
    """Rank 0 of ``KeepsGraph`` and ``Sharded``: shows what came back."""

    def decode(self, chunk_index, tensors):
        self.outputs.append(tensors["small"].tolist())
        return Emission(tensors["small"])
