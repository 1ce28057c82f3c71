"""The same computation in one process, without ``torch.distributed``: the pipeline must give equal outputs.

So must the mesh's tensors be equal: ``decode`` may emit a part of them, and report of the others.

It runs the same stages through the same ``loops.run_chunk``, with a mesh of one that sums over no other rank.
It computes a chunk that a flush dropped, as the mesh did, but does not decode it.
"""

from __future__ import annotations

import faulthandler
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import load_file
from torch.distributed.device_mesh import DeviceMesh

from ppwork.plan import Plan
from ppwork.protocol.bounds import Bounds
from ppwork.protocol.envelope import ChunkPlan
from ppwork.records.files import write_whole
from ppwork.records.run import OUTPUTS_FILE, RETURNED_DIFFERS, RETURNED_FILE, VERIFY_FILE
from ppwork.records.spans import read_entries
from ppwork.runtime.device import pick_device
from ppwork.runtime.tensors import dtype_name
from ppwork.stage import NoTensorParallel, Pause, StageContext, StageKind, Tensors, load_stage
from ppwork.timeline.measures import dropped_chunks
from ppwork.worker.loops import decode_chunk, encode_chunk, recompute_at, resets_at, run_chunk, settle_numbers
from ppwork.worker.stage_code import CONSTRUCTOR, without_autograd
from ppwork.worker.summary import real


def main(run_dir: Path) -> int:
    """Recompute a run, compare its outputs and the mesh's tensors, and write ``verify.json``."""
    plan = Plan.load(run_dir).staged
    settle_numbers(plan)
    dropped = dropped_chunks(read_entries(run_dir, 0))
    with safe_open(run_dir / OUTPUTS_FILE, framework="pt") as kept:
        emitted = {int(key) for key in kept.keys()}  # noqa: SIM118  it is no mapping
        returned = _returned(run_dir / RETURNED_FILE)
        comparison = compare(plan, lambda index: kept.get_tensor(f"{index:06d}"), returned, emitted, dropped)
    write_whole(run_dir / VERIFY_FILE, msgspec.json.encode(comparison))
    return 0


def _returned(path: Path) -> dict[int, dict[str, torch.Tensor]]:
    chunks = defaultdict[int, dict[str, torch.Tensor]](dict)
    for key, tensor in (load_file(path) if path.exists() else {}).items():  # keep_outputs keeps outputs only
        index, _, name = key.partition(" ")
        chunks[int(index)][name] = tensor
    return chunks


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
    plan: Plan,
    kept: Callable[[int], torch.Tensor],
    returned: Mapping[int, Tensors],
    emitted: Collection[int],
    dropped: Collection[int] = (),
) -> dict[str, float | int | str | None]:
    """Compute every chunk in this process and compare it with the kept output, and the mesh's tensors.

    Args:
        plan: The run's plan.
        kept: Function from chunk index to rank 0's emitted output.
        returned: By chunk index and name the tensors from which that was decoded.
        emitted: Chunks that rank 0 emitted.
        dropped: Chunks that rank 0 dropped as stale; these have no output to compare.

    Returns:
        ``max_abs_diff``, the largest absolute difference (infinite if shapes differ, or if a chunk was
        neither emitted nor dropped, or both); ``verified_chunks``; ``first_different``, the first chunk that
        differs by more than is allowed, ``first_values``, how many of its values do, and ``most_different``,
        the one that differs most; ``dtype`` of the compared outputs; and what ``returned_apart`` says of the
        first chunk of which it says anything.
    """
    device = pick_device(plan, 0, 0, 1)
    context = StageContext(plan, device, MeshOfOne(device))
    # One process does the work of all ranks, one rank after the other.
    stall_s = Bounds.of(plan).stall_s * plan.world_size
    faulthandler.dump_traceback_later(stall_s, exit=True)
    stage0 = _load(plan.stage0, StageKind.STAGE0, context)
    generator = _load(plan.stage1, StageKind.GENERATOR, context)
    worst, index, verified, dtype, apart = 0.0, 0, 0, "", ""
    first, values = None, ""
    most: int | None = None
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
        steps = chunk.steps or plan.steps
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
                values = (
                    values_apart(output, kept(index), plan.allowed_difference) if index in emitted else ""
                )
            if not apart and index in returned:
                apart = returned_apart(result.tensors, returned[index], plan.allowed_difference, index)
            if far > worst:
                worst, most = far, index
            verified += 1
        index += 1
    faulthandler.cancel_dump_traceback_later()
    if set(emitted) | set(dropped) != set(range(index)) or set(emitted) & set(dropped):
        worst = float("inf")
    return {
        "max_abs_diff": worst,
        "verified_chunks": verified,
        "first_different": first,
        "first_values": values,
        "most_different": most,
        "dtype": dtype,
        RETURNED_DIFFERS: apart,
    }


def values_apart(computed: torch.Tensor, other: torch.Tensor, allowed: float) -> str:
    """Return how many values differ by more than is allowed: ``3 of 12 values``; empty if shapes differ.

    If some are NaN, it says in which of the two: a model that makes them makes them in both.
    """
    if computed.shape != other.shape:
        return ""
    far = ~((computed.double() - other.double()).abs() <= allowed)
    ours, theirs = int(computed.isnan().sum()), int(other.isnan().sum())
    told = f"; NaN: {theirs} in the run, {ours} in one process" if ours or theirs else ""
    return f"{int(far.sum())} of {far.numel()} values{told}"


def returned_apart(computed: Tensors, returned: Tensors, allowed: float, index: int) -> str:
    """Say which tensor of a chunk's result is first not the one that was computed here; empty: none.

    Args:
        computed: The tensors computed in this process, by name.
        returned: Those that the mesh returned, on the CPU, as ``summary.real`` keeps them.
        allowed: Largest difference: absolute up to values of 1, and else a part of the largest value.
        index: The chunk's index.
    """
    for name in {**computed, **returned}:
        ours, theirs = computed.get(name), returned.get(name)
        if ours is None or theirs is None:
            where = "from the mesh" if ours is None else "in one process"
            return f"`{name}` of chunk {index} came {where} only"
        by = difference(real(ours.cpu()), theirs, equal_nan=True)  # it may stand for nothing there
        finite = theirs.double().abs().nan_to_num(0.0, posinf=0.0)
        largest = finite.amax().item() if finite.numel() else 0.0
        if not by <= allowed * max(1.0, largest):
            how = "in shape or by a NaN" if by == float("inf") else f"by {by:g} of at most {largest:g}"
            return f"`{name}` ({dtype_name(ours.dtype)}) differed {how}, first in chunk {index}"
    return ""


def _load(path: str, kind: StageKind, context: StageContext) -> Any:  # noqa: ANN401  user code
    stage = load_stage(path, kind, search=Path.cwd())
    with without_autograd(stage, CONSTRUCTOR):
        return stage(context)


def difference(a: torch.Tensor, b: torch.Tensor, *, equal_nan: bool = False) -> float:
    """Return the largest absolute difference; infinity if the shapes differ or there is a NaN.

    ``equal_nan``: a NaN that both have at one place is no difference.
    """
    if a.shape != b.shape:
        return float("inf")
    if a.numel() == 0:
        return 0.0
    a, b = a.double(), b.double()
    is_same = a == b  # the difference of two infinities is a NaN
    if equal_nan:
        is_same |= a.isnan() & b.isnan()
    return (a - b).abs().masked_fill(is_same, 0.0).nan_to_num(float("inf"), float("inf")).max().item()
