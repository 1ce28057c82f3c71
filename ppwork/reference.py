"""The same computation in one process, without ``torch.distributed``: what the pipeline must equal.

It runs the same stages through the same ``control.run_chunk``, with a mesh of one that sums over nobody.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import torch
from safetensors import safe_open

from ppwork import lifeline
from ppwork.control import encode_chunk, recompute_at, run_chunk
from ppwork.envelope import ChunkPlan
from ppwork.failure import write_whole
from ppwork.groups import pick_device
from ppwork.plan import Plan
from ppwork.run import OUTPUTS_FILE, VERIFY_FILE
from ppwork.stage import STAGE0_METHODS, STAGE1_METHODS, NoTensorParallel, StageContext, load_stage


def main(run_dir: Path) -> int:
    """Recompute a run, compare with what rank 0 kept, and write ``verify.json``."""
    lifeline.hold_if_asked()
    plan = Plan.load(run_dir)
    torch.set_num_threads(plan.threads_per_rank)
    with safe_open(run_dir / OUTPUTS_FILE, framework="pt") as kept:
        found = compare(plan, lambda index: kept.get_tensor(f"{index:06d}"), len(kept.keys()))
    write_whole(run_dir / VERIFY_FILE, msgspec.json.encode(found))
    return 0


def compare(plan: Plan, kept: object, count: int) -> dict[str, float | int]:
    """Compute every chunk in this process and return the largest absolute difference to what was kept.

    Args:
        plan: The run's plan.
        kept: Function from chunk index to rank 0's emitted output.
        count: Number of chunks that rank 0 emitted.

    Returns:
        ``max_abs_diff`` (infinite when shapes or the number of chunks differ) and ``verified_chunks``.
    """
    if not callable(kept):
        raise TypeError("kept must be a function from chunk index to tensor")
    device = pick_device(plan, 0, 0)
    context = StageContext(plan, device, NoTensorParallel())
    stage0 = load_stage(plan.stage0, STAGE0_METHODS, search=Path.cwd())(context)
    generator = load_stage(plan.stage1, STAGE1_METHODS, search=Path.cwd())(context)
    worst, done = 0.0, 0
    for index in range(plan.chunks or 0):
        recompute = recompute_at(plan.recompute_every, index)
        tensors = encode_chunk(stage0, index, recompute=recompute)
        if tensors is None:
            break
        chunk_plan = ChunkPlan.of(
            plan.denoise_steps, recompute=recompute, reset_cache=index in plan.hard_cuts
        )
        result, _ = run_chunk(generator, chunk_plan, tensors)
        output = stage0.decode(index, result).output.cpu()
        done += 1
        worst = max(worst, difference(output, kept(index)) if index < count else float("inf"))
    if done != count:
        worst = float("inf")
    return {"max_abs_diff": worst, "verified_chunks": done}


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest absolute difference; shapes that differ, or a NaN, are infinitely far."""
    if a.shape != b.shape:
        return float("inf")
    if a.numel() == 0:
        return 0.0
    largest = (a.double() - b.double()).abs().max().item()
    return largest if largest == largest else float("inf")  # noqa: PLR0124  NaN
