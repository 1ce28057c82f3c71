"""The three role loops, side by side: what stage 0, the leader and a follower do with one chunk.

Stage 0 has two orders, the sequential one and the one that overlaps; the mesh runs the same loop under both.
The loops know stages and the control plane, and nothing of groups or bytes.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ppwork.envelope import CONTEXT_PREFIX, Ids, PPAction, PPEnvelope, PPResult
from ppwork.errors import PPWorkError, StageError, text_of
from ppwork.tensor_parallel import only_group

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from ppwork.control_plane import PPControlPlane
    from ppwork.stage import Generator, Stage0, Tensors

log = logging.getLogger(__name__)

Outputs = dict[int, "torch.Tensor"]
"""What was emitted, by chunk index."""


def stage0_loop(plane: PPControlPlane, stage0: Stage0) -> Outputs:
    """Rank 0: run the plan's order, then shut down.

    Returns:
        What was emitted, by chunk index, if the plan says ``verify``; else nothing is kept.
    """
    loop = sequential_loop if plane.plan.in_flight_depth == 1 else overlap_loop
    kept = loop(plane, stage0)
    plane.shutdown()
    return kept


def sequential_loop(plane: PPControlPlane, stage0: Stage0) -> Outputs:
    """Rank 0, "PP0": envelope k+1 leaves after result k was decoded; ``period = stage0 + stage1``."""
    kept: Outputs = {}
    for chunk_index in range(plane.plan.chunks or 0):
        if not _encode_and_send(plane, stage0, chunk_index):
            break
        _receive_and_decode(plane, stage0, kept)
    return kept


def overlap_loop(plane: PPControlPlane, stage0: Stage0) -> Outputs:
    """Rank 0, step A3: envelope k+1 leaves *before* result k is decoded; ``period = max`` of the stages.

    A chunk is unfinished from its encode to its emission, and never more than ``in_flight_depth`` are.
    """
    kept: Outputs = {}
    next_chunk, unfinished, more = 0, 0, True
    while more or unfinished:
        while more and unfinished < plane.plan.in_flight_depth:
            more = next_chunk < (plane.plan.chunks or 0) and _encode_and_send(plane, stage0, next_chunk)
            next_chunk, unfinished = next_chunk + more, unfinished + more
        if unfinished:
            _receive_and_decode(plane, stage0, kept)
            unfinished -= 1
    return kept


def leader_loop(plane: PPControlPlane, generator: Generator) -> None:
    """Rank 1: receive, pass on to the mesh, compute with it, return exactly one result per chunk."""
    while (envelope := plane.receive()).action is not PPAction.SHUTDOWN:
        if envelope.action is PPAction.INFER:
            plane.send_result(_generate(plane, generator, envelope))
    plane.acknowledge()


def follower_loop(plane: PPControlPlane, generator: Generator) -> None:
    """The other mesh ranks: receive from the leader, compute with it."""
    while (envelope := plane.receive()).action is not PPAction.SHUTDOWN:
        if envelope.action is PPAction.INFER:
            _generate(plane, generator, envelope)
    plane.acknowledge()


def recompute_at(every: int, chunk_index: int) -> bool:
    """Say whether the cache is rebuilt before this chunk; the reference run asks the same question."""
    return every > 0 and chunk_index > 0 and chunk_index % every == 0


def run_chunk(generator: Generator, plan: Any, tensors: Tensors) -> tuple[Tensors, int]:  # noqa: ANN401
    """Carry out a chunk's plan on one rank; the pipeline and the single-process reference both do this.

    Args:
        generator: Stage 1.
        plan: The ``ChunkPlan`` that came with the chunk.
        tensors: The envelope's; those named ``context.*`` are for recompute only.

    Returns:
        The last step's tensors, and the number of generator calls made.
    """
    calls = 0
    if plan.reset_cache:
        generator.reset_cache()
    if plan.recompute:
        generator.recompute({k: v for k, v in tensors.items() if k.startswith(CONTEXT_PREFIX)})
        calls += 1
    current: Mapping[str, Any] = {k: v for k, v in tensors.items() if not k.startswith(CONTEXT_PREFIX)}
    for step_index in range(plan.steps):
        current = generator.step(current, step_index, plan.steps)
        calls += 1
    return current, calls


def encode_chunk(stage0: Stage0, chunk_index: int, *, recompute: bool) -> dict[str, torch.Tensor] | None:
    """Encode a chunk, with its context frames if they are asked for; shared with the reference."""
    tensors = stage0.encode(chunk_index)
    if tensors is None:
        return None
    extra = stage0.context_frames(chunk_index) if recompute else {}
    return {**tensors, **extra}


def _encode_and_send(plane: PPControlPlane, stage0: Stage0, chunk_index: int) -> bool:
    """Encode the next chunk and send it; false when the source has ended."""
    plan = plane.plan
    cut, recompute = chunk_index in plan.hard_cuts, recompute_at(plan.recompute_every, chunk_index)
    ids = plane.session.next_ids(PPAction.INFER, hard_cut=cut)
    with plane.recorder.span("encode", ids=ids.where()), stage_code("encode", ids):
        tensors = encode_chunk(stage0, chunk_index, recompute=recompute)
    if tensors is None:
        return False
    plane.send(tensors, hard_cut=cut, recompute=recompute)
    return True


def _receive_and_decode(plane: PPControlPlane, stage0: Stage0, kept: Outputs) -> None:
    """Take the oldest result, decode and emit it; a stale one is dropped."""
    result, good = plane.receive_result()
    if not good:
        log.info("chunk %d was stale and dropped", result.ids.chunk_index)
        return
    ids = result.ids
    with plane.recorder.span("decode", ids=ids.where()), stage_code("decode", ids):
        emission = stage0.decode(ids.chunk_index, result.tensors)
    figures = {"stage1_ms": result.stage1_ns / 1e6, **emission.metrics}
    plane.recorder.instant("emit", figures=figures, ids=ids.where())
    log.info("chunk %d emitted, stage 1 took %.1f ms", ids.chunk_index, figures["stage1_ms"])
    if plane.plan.verify:
        kept[ids.chunk_index] = emission.output


def _generate(plane: PPControlPlane, generator: Generator, envelope: PPEnvelope) -> PPResult:
    ids = envelope.ids
    start_ns = time.monotonic_ns()
    guard = only_group(plane.groups, "tp_pg")
    with plane.recorder.span("generate", ids=ids.where()), stage_code("generate", ids), guard:
        tensors, calls = run_chunk(generator, envelope.plan, envelope.tensors)
    if plane.groups.device.type == "cuda":
        _wait_for_device(plane)
    stage1_ns = time.monotonic_ns() - start_ns
    plane.computed(calls)
    return PPResult(PPAction.INFER, ids, calls, stage1_ns, {}, tensors)


def _wait_for_device(plane: PPControlPlane) -> None:
    """Make ``stage1_ns`` the time of the work and not of its launch; sequential order loses nothing by it."""
    import torch

    torch.cuda.synchronize(plane.groups.device)


@contextmanager
def stage_code(step: str, ids: Ids | None = None) -> Iterator[None]:
    """Run user code; whatever it raises becomes a ``StageError`` with the original as its cause.

    Raises:
        StageError: The body raised something that is not ours (the rank that ran it).
    """
    where = ids.where() if ids is not None else {}
    try:
        yield
    except PPWorkError as error:
        error.at(**where)
        raise
    except Exception as error:
        raise StageError(
            f"The stage's {step} raised {text_of(error)}",
            where=where,
            check_first="the traceback above: the last frame outside ppwork is yours",
        ) from error
