"""A generator as tensor parallelism has it: kernels with sums over the mesh between them and behind them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ppwork.workloads.synthetic import Timer

if TYPE_CHECKING:
    from ppwork.stage import StageContext, Tensors


class TwoSums:
    """Stage 1: half of its time, a sum, the other half, a sum; returns what came.

    A transfer that has to wait for the last sum before it can begin is not hidden by anything (finding 3 of
    the review): with a sum behind the last kernel that is seen.
    """

    def __init__(self, context: StageContext) -> None:
        half = float(context.plan.options["stage1_ms"]) / 2
        plan = context.plan.replace(options={**context.plan.options, "half_ms": half})
        self._half, self._tp = Timer(plan, "half_ms", context.device), context.tp

    def reset_cache(self) -> None:
        """Nothing is kept."""

    def recompute(self, context_frames: Tensors) -> None:
        """Nothing is kept."""

    def step(self, tensors: Tensors, step_index: int, num_steps: int) -> Tensors:  # noqa: ARG002  the contract
        """Return the payload as it came, ``[elements]`` float32."""
        for _ in range(2):
            self._half.take()
            self._tp.all_reduce(torch.ones(1, device=tensors["payload"].device))
        return tensors
