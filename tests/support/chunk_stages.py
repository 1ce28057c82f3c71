"""The shortest pair of stages that talk: the source of steps, cuts and prompts, the mesh of its scene."""

from __future__ import annotations

import torch

from ppwork.stage import Chunk, Emission, Result


class Director:
    """Chunk 2 begins a new scene, chunk 1 takes three steps, and each has its prompt."""

    def __init__(self, context):
        self.scale = float(context.plan.options["scale"])

    def encode(self, chunk_index):
        return Chunk(
            {"x": torch.full((3,), float(chunk_index))},
            metadata={"prompt": {"plus": chunk_index * self.scale}, "at": (chunk_index, 0)},
            hard_cut=chunk_index == 2,
            steps=3 if chunk_index == 1 else None,
        )

    def decode(self, chunk_index, tensors, metadata, result_metadata):
        assert metadata["prompt"]["plus"] == chunk_index * self.scale
        return Emission(tensors["x"], {"x": tensors["x"][0].item(), "seen": result_metadata["scene"]["seen"]})


class Actor:
    """Adds the prompt's number at each step, and the length of the scene."""

    def __init__(self, context):
        self.seen = 0

    def reset_cache(self):
        self.seen = 0

    def step(self, tensors, step_index, num_steps, metadata):
        self.seen += step_index == 0
        x = tensors["x"] + metadata["prompt"]["plus"] + 100 * self.seen * (step_index == 0)
        return Result({"x": x}, {"scene": {"seen": self.seen}})


class Chatterbox(Actor):
    """Says what no message can carry."""

    def step(self, tensors, step_index, num_steps, metadata):
        return Result(super().step(tensors, step_index, num_steps, metadata).tensors, {"me": {"is": self}})
