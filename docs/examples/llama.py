"""A small Llama in two stages: embedding and head on rank 0, the blocks and their cache on the mesh.

Two prompts take turns, so that at depth 2 rank 0 reads one's word while the mesh computes the other's. How
the mesh holds the blocks is the generator's to say; these three say the same words. From this folder::

    ppwork run --stage0 llama:Words --stage1 llama:Split --depth 2 --verify
    ppwork run --stage0 llama:Words --stage1 llama:Sharded --depth 2 --verify
    ppwork run --stage0 llama:Words --stage1 llama:Compiled --depth 2 --timeout-s 300 -o backend=inductor
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from ppwork.ranks import NOT_YET, Chunk, Emission, StageContext, Tensors

DIM, HEADS, LAYERS, WORDS, LENGTH = 64, 4, 2, 50, 4
PROMPTS = [[1, 2, 3, 4], [40, 30, 20, 10]]

Cache = tuple[torch.Tensor, torch.Tensor]
"""Keys and values of the words so far, ``[heads, words, width]``: of the heads that are on this rank."""


class Attention(nn.Module):
    """Causal attention over a cache; how many heads are here follows from what the projections give."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))

    def forward(self, x: torch.Tensor, past: Cache | None) -> tuple[torch.Tensor, Cache]:
        q, k, v = (
            part(x).unflatten(-1, (-1, DIM // HEADS)).transpose(0, 1) for part in (self.q, self.k, self.v)
        )
        if past is not None:
            k, v = torch.cat((past[0], k), 1), torch.cat((past[1], v), 1)
        old = k.shape[1] - q.shape[1]
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool, device=x.device).tril(old)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.o(y.transpose(0, 1).flatten(-2)), (k, v)


class Block(nn.Module):
    """As Llama's: RMSNorm, attention, RMSNorm, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm_1, self.norm_2 = Attention(), nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.gate, self.up = (nn.Linear(DIM, 2 * DIM, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor, past: Cache | None = None) -> tuple[torch.Tensor, Cache]:
        y, past = self.attention(self.norm_1(x), past)
        y = self.norm_2(x := x + y)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y)), past


SPLIT = {
    **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
    **{name: ColwiseParallel() for name in ("gate", "up")},
    **{name: RowwiseParallel() for name in ("attention.o", "down")},
}
"""Two sums in each block: after the attention, and after the MLP."""


def whole() -> tuple[nn.Embedding, nn.ModuleList, nn.Linear]:
    """Return the same random model in every process: embedding, blocks, head."""
    torch.manual_seed(0)
    return nn.Embedding(WORDS, DIM), nn.ModuleList(Block() for _ in range(LAYERS)), nn.Linear(DIM, WORDS)


class Words:
    """Rank 0: the next word of each prompt in turn."""

    def __init__(self, context: StageContext) -> None:
        self.embedding, self.head = self.ends()
        self.said: list[list[int]] = [[] for _ in PROMPTS]

    def ends(self) -> tuple[nn.Module, nn.Module]:
        """Return embedding and head."""
        embedding, _, head = whole()
        return embedding, head

    def encode(self, chunk_index: int) -> Chunk | object | None:
        place, prompt = divmod(chunk_index, len(PROMPTS))
        if place == LENGTH:
            return None
        if len(self.said[prompt]) < place:
            time.sleep(0.001)
            return NOT_YET  # the word before it is still on the mesh: so it is at depth 3
        words = self.said[prompt][-1:] or PROMPTS[prompt]
        x = self.embedding(torch.tensor(words))
        # With the first chunk of a session the mesh forgets what it knows of the one before.
        return Chunk({"x": x}, metadata={"prompt": prompt}, hard_cut=chunk_index == 0)

    def decode(self, chunk_index: int, tensors: Tensors) -> Emission:
        likely = self.head(tensors["x"][-1])
        self.said[chunk_index % len(PROMPTS)].append(int(likely.argmax()))
        return Emission(likely)

    def finish(self) -> dict[str, object]:
        return {"said": self.said}


class Blocks:
    """Mesh: the blocks as this rank holds them, and a cache for each prompt."""

    def __init__(self, blocks: nn.ModuleList) -> None:
        self.blocks = blocks
        self.past: dict[int, list[Cache | None]] = {}

    def reset_cache(self) -> None:
        self.past.clear()

    def step(self, tensors: Tensors, step_index: int, num_steps: int, metadata: Mapping[str, Any]) -> Tensors:
        x, past = tensors["x"], self.past.setdefault(metadata["prompt"], [None] * LAYERS)
        for layer, block in enumerate(self.blocks):
            x, past[layer] = block(x, past[layer])
        return {"x": x}


class Split(Blocks):
    """Each rank has its share of every head and of every MLP: torch's tensor parallelism."""

    def __init__(self, context: StageContext) -> None:
        _, blocks, _ = whole()
        for block in blocks:
            parallelize_module(block, context.tp.device_mesh, SPLIT)
        super().__init__(blocks)


class Sharded(Blocks):
    """Each rank keeps its share of the weights, and gathers a block whole to run it: FSDP2."""

    inference_mode = False  # FSDP2 asks for version counters, which inference tensors do not have

    def __init__(self, context: StageContext) -> None:
        _, blocks, _ = whole()
        for block in blocks:
            fully_shard(block, mesh=context.tp.device_mesh)
        super().__init__(blocks)

    @torch.no_grad()
    def step(self, tensors: Tensors, step_index: int, num_steps: int, metadata: Mapping[str, Any]) -> Tensors:
        return super().step(tensors, step_index, num_steps, metadata)


class Compiled(Split):
    """The split blocks, compiled. ``inductor`` needs a C++ compiler on the CPU; ``aot_eager`` none."""

    def __init__(self, context: StageContext) -> None:
        super().__init__(context)
        backend = context.plan.options.get("backend", "aot_eager")
        for block in self.blocks:
            block.compile(backend=backend, dynamic=True)
