"""Stages of ``growth``: chosen times, tensors, bytes and metadata, and nothing computed.

Options of the plan: ``encode_ms``, ``decode_ms``, ``stage1_ms``; ``tensors`` (their number), ``payload`` (of
all of them, in bytes), ``metadata`` (in bytes).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import torch

from ppwork.ranks import Chunk, Emission

if TYPE_CHECKING:
    from ppwork.ranks import StageContext

    Tensors = dict[str, torch.Tensor]


class Source:
    """Stage 0: sends the same bytes again and again, from a buffer for each chunk that can be in flight."""

    def __init__(self, context: StageContext) -> None:
        options = context.plan.options
        self._encode_s, self._decode_s = options["encode_ms"] / 1e3, options["decode_ms"] / 1e3
        number, size = options["tensors"], max(1, options["payload"] // options["tensors"])
        self._chunks = [
            {f"t{n}": torch.zeros(size, dtype=torch.uint8) for n in range(number)}
            for _ in range(context.plan.in_flight_depth + 1)
        ]
        self._metadata = {"text": "x" * options["metadata"]} if options["metadata"] else {}

    def encode(self, chunk_index: int) -> Chunk:
        """Return ``tensors`` tensors of uint8, the first of which begins with the chunk's number."""
        time.sleep(self._encode_s)
        tensors = self._chunks[chunk_index % len(self._chunks)]
        tensors["t0"][0] = chunk_index % 256
        return Chunk(tensors, metadata=self._metadata)

    def decode(self, chunk_index: int, tensors: Tensors) -> Emission:
        """Emit the number that came back."""
        time.sleep(self._decode_s)
        if int(tensors["t0"][0]) != chunk_index % 256:
            raise ValueError(f"chunk {chunk_index} came back as {int(tensors['t0'][0])}")
        return Emission(tensors["t0"][:1].clone())


class Echo:
    """Stage 1: returns what came."""

    def __init__(self, context: StageContext) -> None:
        self._seconds = context.plan.options["stage1_ms"] / 1e3

    def step(self, tensors: Tensors, step_index: int, num_steps: int) -> Tensors:  # noqa: ARG002
        """Return the same tensors."""
        time.sleep(self._seconds)
        return tensors
