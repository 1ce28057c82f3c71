"""A small Llama whose blocks torch's own tensor parallelism splits; it stays loaded over two sessions.

The mesh is made once, by ``init_process_group`` and ``DeviceMesh``, and handed to each ``join``: DTensors
live on it, so it must outlive the sessions. Embedding and head are on rank 0, blocks and cache on the mesh;
the words that come out are those of the whole model in one process. Run it with plain torchrun::

    torchrun --standalone --nproc-per-node 3 llama_dtensor.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional

from ppwork.ranks import (
    Chunk,
    MeshPlane,
    Plan,
    Stage0Plane,
    StageContext,
    Tensors,
    join,
    run_mesh,
    run_stage0,
    stage_context,
)

DIM, HEADS, LAYERS, WORDS, LENGTH = 64, 4, 2, 50, 4
PROMPTS = [[1, 2, 3, 4], [40, 30, 20, 10]]


class Attention(nn.Module):
    """Causal attention over a cache; how many heads are here follows from what the projections give."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(DIM, DIM, bias=False) for _ in range(4))
        self.past: tuple[torch.Tensor, torch.Tensor] | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            part(x).unflatten(-1, (-1, DIM // HEADS)).transpose(0, 1) for part in (self.q, self.k, self.v)
        )
        if self.past is not None:
            k, v = torch.cat((self.past[0], k), 1), torch.cat((self.past[1], v), 1)
        self.past = k, v
        old = k.shape[1] - q.shape[1]
        seen = torch.ones(q.shape[1], k.shape[1], dtype=torch.bool).tril(old)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        return self.o(y.transpose(0, 1).flatten(-2))


class Block(nn.Module):
    """As Llama's: RMSNorm, attention, RMSNorm, SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.norm_1, self.norm_2 = Attention(), nn.RMSNorm(DIM), nn.RMSNorm(DIM)
        self.gate, self.up = (nn.Linear(DIM, 2 * DIM, bias=False) for _ in range(2))
        self.down = nn.Linear(2 * DIM, DIM, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        y = self.norm_2(x)
        return x + self.down(functional.silu(self.gate(y)) * self.up(y))


SPLIT = {
    **{f"attention.{name}": ColwiseParallel() for name in "qkv"},
    **{name: ColwiseParallel() for name in ("gate", "up")},
    **{name: RowwiseParallel() for name in ("attention.o", "down")},
}


def whole() -> tuple[nn.Embedding, nn.ModuleList, nn.Linear]:
    """Return the same random model in every process: embedding, blocks, head."""
    torch.manual_seed(0)
    return nn.Embedding(WORDS, DIM), nn.ModuleList(Block() for _ in range(LAYERS)), nn.Linear(DIM, WORDS)


class Words:
    """Rank 0: prompt by prompt the next words; each depends on the last, so the depth is 1."""

    def __init__(self, context: StageContext, embedding: nn.Embedding, head: nn.Linear) -> None:
        self.embedding, self.head, self.said = embedding, head, list[list[int]]()

    def encode(self, chunk_index: int) -> Chunk | None:
        prompt, place = divmod(chunk_index, LENGTH)
        if prompt == len(PROMPTS):
            return None
        words = PROMPTS[prompt] if place == 0 else self.said[prompt][-1:]
        # The cache starts anew with each prompt, and with the first of a session.
        return Chunk({"x": self.embedding(torch.tensor(words))}, hard_cut=place == 0)

    def decode(self, chunk_index: int, tensors: Tensors) -> None:
        if chunk_index % LENGTH == 0:
            self.said.append([])
        self.said[-1].append(int(self.head(tensors["x"][-1]).argmax()))

    def finish(self) -> dict[str, object]:
        return {"said": self.said}


class Llama:
    """Mesh: this rank's share of all blocks. It knows nothing of sessions."""

    def __init__(self, blocks: nn.ModuleList) -> None:
        self.blocks = blocks

    def reset_cache(self) -> None:
        for block in self.blocks:
            block.attention.past = None

    def step(self, tensors: Tensors, step_index: int, num_steps: int) -> Tensors:
        x = tensors["x"]
        for block in self.blocks:
            x = block(x)
        return {"x": x}


def in_one_process() -> list[list[int]]:
    """Return what the whole model says, without any cache."""
    embedding, blocks, head = whole()
    llama, said = Llama(blocks), []
    for prompt in PROMPTS:
        words = list(prompt)
        for _ in range(LENGTH):
            llama.reset_cache()
            x = llama.step({"x": embedding(torch.tensor(words))}, 0, 1)["x"]
            words.append(int(head(x[-1]).argmax()))
        said.append(words[len(prompt) :])
    return said


def main() -> None:
    """Be one rank, in two sessions with one model."""
    dist.init_process_group("gloo")
    mesh = DeviceMesh("cpu", [1, 2], mesh_dim_names=("tp",))  # all ranks make it, also rank 0
    embedding, blocks, head = whole()
    if dist.get_rank() > 0:
        for block in blocks:
            parallelize_module(block, mesh, SPLIT)
    expected = in_one_process() if dist.get_rank() == 0 else []
    for session in range(2):
        plan = Plan(mesh_size=2, chunks=len(PROMPTS) * LENGTH, backend="gloo", timeout_s=60)
        with join(plan, mesh=mesh) as plane:
            if isinstance(plane, Stage0Plane):
                said = run_stage0(plane, Words(stage_context(plane), embedding, head))["said"]
                print(
                    f"session {session}: {said}",
                    "as in one process" if said == expected else expected,
                    flush=True,
                )
            elif isinstance(plane, MeshPlane):
                run_mesh(plane, Llama(blocks))
    dist.destroy_process_group()


if __name__ == "__main__":
    with torch.no_grad():
        main()
