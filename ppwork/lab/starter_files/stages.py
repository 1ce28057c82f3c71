"""Two stages to begin with: rank 0 makes signals, the mesh runs an MLP that is split over its ranks.

Replace their insides with your own. The rules of a stage: docs/stages.md, which `ppwork lessons` copies.
"""

from __future__ import annotations

import torch

from ppwork.stage import Emission, StageContext, Tensors

WIDTH, HIDDEN = 64, 256


def weights() -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two matrices of the MLP, the same on every rank."""
    dice = torch.Generator().manual_seed(0)
    up = torch.randn(HIDDEN, WIDTH, generator=dice) / WIDTH**0.5
    down = torch.randn(WIDTH, HIDDEN, generator=dice) / HIDDEN**0.5
    return up, down


class Source:
    """Stage 0, on rank 0: makes chunk k, and gets its result back."""

    def __init__(self, context: StageContext) -> None:
        self.energy, self.device = 0.0, context.device

    def encode(self, chunk_index: int) -> Tensors:
        """Return what the mesh gets of this chunk: float32 [8, WIDTH], which arrives on this kind of device."""
        phase = torch.arange(8 * WIDTH, device=self.device).reshape(8, WIDTH) / 10 + chunk_index
        return {"x": torch.sin(phase)}

    def decode(self, chunk_index: int, tensors: Tensors) -> Emission:
        """Take the mesh's result; the figures appear in the progress line and in the summary."""
        self.energy += tensors["x"].square().mean().item()
        return Emission(tensors["x"], {"mean": tensors["x"].mean().item()})

    def finish(self) -> dict[str, object]:
        """Return figures for the summary of the run."""
        return {"energy": self.energy}


class Block:
    """Stage 1, on every rank of the mesh: each has a part of the hidden units, and one sum joins the parts."""

    def __init__(self, context: StageContext) -> None:
        self.tp = context.tp
        up, down = weights()
        own = torch.arange(HIDDEN).tensor_split(self.tp.size)[self.tp.group_rank]
        self.up, self.down = up[own].to(context.device), down[:, own].contiguous().to(context.device)

    def step(self, tensors: Tensors, step_index: int, num_steps: int) -> Tensors:
        """Run the block once on this chunk."""
        hidden = torch.nn.functional.gelu(tensors["x"] @ self.up.T)
        return {"x": tensors["x"] + self.tp.all_reduce(hidden @ self.down.T)}
