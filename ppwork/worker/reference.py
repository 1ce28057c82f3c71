"""The same computation in one process, without ``torch.distributed``: the pipeline must give equal outputs.

It runs the same stages through the same ``loops.run_chunk``, with a mesh of one that sums over no other rank.
It computes a chunk that a flush dropped, as the mesh did, but does not decode it.
"""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Collection
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from safetensors import safe_open
from torch.distributed.device_mesh import DeviceMesh

from ppwork.plan import Plan
from ppwork.protocol.bounds import Bounds
from ppwork.protocol.envelope import ChunkPlan
from ppwork.records.files import write_whole
from ppwork.records.run import OUTPUTS_FILE, VERIFY_FILE
from ppwork.records.spans import read_entries
from ppwork.runtime.groups import pick_device
from ppwork.runtime.tensors import dtype_name
from ppwork.stage import NoTensorParallel, Pause, StageContext, StageKind, load_stage
from ppwork.timeline.measures import dropped_chunks
from ppwork.worker.loops import decode_chunk, encode_chunk, recompute_at, resets_at, run_chunk, settle_numbers
from ppwork.worker.stage_code import CONSTRUCTOR, without_autograd


def main(run_dir: Path) -> int:
    """Recompute a run, compare its outputs with rank 0's, and write ``verify.json``."""
    plan = Plan.load(run_dir).staged
    settle_numbers(plan)
    dropped = dropped_chunks(read_entries(run_dir, 0))
    with safe_open(run_dir / OUTPUTS_FILE, framework="pt") as kept:
        emitted = {int(key) for key in kept.keys()}  # noqa: SIM118  it is no mapping
        comparison = compare(plan, lambda index: kept.get_tensor(f"{index:06d}"), emitted, dropped)
    write_whole(run_dir / VERIFY_FILE, msgspec.json.encode(comparison))
    return 0


class MeshOfOne(NoTensorParallel):
    """The mesh of one, with a group of one, created when a stage asks for it: DTensor needs a group."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @cached_property
    def group(self) -> dist.ProcessGroup:
        """A group of this process alone."""
        backend = "cpu:gloo,cuda:nccl" if self._device.type == "cuda" else "gloo"
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
        return dist.distributed_c10d._get_default_group()

    @cached_property
    def device_mesh(self) -> DeviceMesh:
        """The same group as a mesh."""
        return DeviceMesh.from_group(self.group, self._device.type, mesh_dim_names=("tp",))


def compare(
    plan: Plan, kept: Callable[[int], torch.Tensor], emitted: Collection[int], dropped: Collection[int] = ()
) -> dict[str, float | int | str | None]:
    """Compute every chunk in this process and compare it with the kept output.

    Args:
        plan: The run's plan.
        kept: Function from chunk index to rank 0's emitted output.
        emitted: Chunks that rank 0 emitted.
        dropped: Chunks that rank 0 dropped as stale; these have no output to compare.

    Returns:
        ``max_abs_diff``, the largest absolute difference (infinite if shapes differ, or if a chunk was
        neither emitted nor dropped, or both), ``verified_chunks``, ``first_different`` (the first chunk that
        differs by more than is allowed) and ``dtype`` of the compared outputs.
    """
    device = pick_device(plan, 0, 0, 1)
    context = StageContext(plan, device, MeshOfOne(device))
    # One process does the work of all ranks, one rank after the other.
    stall_s = Bounds.of(plan).stall_s * plan.world_size
    faulthandler.dump_traceback_later(stall_s, exit=True)
    stage0 = _load(plan.stage0, StageKind.STAGE0, context)
    generator = _load(plan.stage1, StageKind.GENERATOR, context)
    worst, index, verified, dtype = 0.0, 0, 0, ""
    first: int | None = None
    # A source without a fixed number is asked once more than it had chunks: it should say that it has ended.
    chunks = len(set(emitted) | set(dropped)) + 1 if plan.chunks is None else plan.chunks
    while index < chunks:
        faulthandler.dump_traceback_later(stall_s, exit=True)
        recompute = recompute_at(plan.recompute_every, index)
        with without_autograd(stage0):
            chunk = encode_chunk(stage0, index, recompute=recompute)
        if isinstance(chunk, Pause):
            continue  # a live source pauses here as well
        if chunk is None:
            break
        _, cut = resets_at(plan, index, chunk)
        steps = chunk.steps or plan.denoise_steps
        chunk_plan = ChunkPlan.of(steps, recompute=recompute, reset_cache=cut)
        with without_autograd(generator):
            result, _ = run_chunk(generator, chunk_plan, chunk.tensors, chunk.metadata)
        if index not in dropped:
            with without_autograd(stage0):
                output = decode_chunk(stage0, index, result, chunk.metadata, verify=True).output.cpu()
            dtype = dtype_name(output.dtype)
            far = difference(output, kept(index)) if index in emitted else float("inf")
            if first is None and far > plan.allowed_difference:
                first = index
            worst = max(worst, far)
            verified += 1
        index += 1
    faulthandler.cancel_dump_traceback_later()
    if set(emitted) | set(dropped) != set(range(index)) or set(emitted) & set(dropped):
        worst = float("inf")
    return {"max_abs_diff": worst, "verified_chunks": verified, "first_different": first, "dtype": dtype}


def _load(path: str, kind: StageKind, context: StageContext) -> Any:  # noqa: ANN401  user code
    stage = load_stage(path, kind, search=Path.cwd())
    with without_autograd(stage, CONSTRUCTOR):
        return stage(context)


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest absolute difference; infinity if the shapes differ or there is a NaN."""
    if a.shape != b.shape:
        return float("inf")
    if a.numel() == 0:
        return 0.0
    largest = (a.double() - b.double()).abs().max().item()
    return largest if largest == largest else float("inf")  # noqa: PLR0124  NaN
