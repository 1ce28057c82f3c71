"""What one rank does with one chunk: the steps that the loops in ``control`` put in order.

``run_chunk`` and ``encode_chunk`` are also what the single-process reference does, so both compute the same.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ppwork import activity
from ppwork.digests import compare_inputs
from ppwork.envelope import CONTEXT_PREFIX, Ids, PPAction, PPEnvelope, PPResult
from ppwork.errors import PPWorkError, StageError, text_of
from ppwork.stage import NOT_YET, Pause
from ppwork.tensor_parallel import counting, only_group

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import torch

    from ppwork.control_plane import PPControlPlane
    from ppwork.plane import Timed
    from ppwork.stage import Generator, Stage0, Tensors

log = logging.getLogger(__name__)

Outputs = dict[int, "torch.Tensor"]
"""What was emitted, by chunk index."""


@dataclass(frozen=True)
class Encoded:
    """A chunk that waits to leave."""

    tensors: Tensors
    recompute: bool
    start_ns: int
    end_ns: int


class Stage0Steps:
    """Rank 0's chunks, each unfinished from its encode to its emission: encoded, left, here, decoded.

    Args:
        plane: Rank 0's end of the control plane.
        stage0: The stage.
    """

    def __init__(self, plane: PPControlPlane, stage0: Stage0) -> None:
        self.plane, self.plan = plane, plane.plan
        self.kept: Outputs = {}
        """What was emitted, if the plan says ``verify``; else nothing is kept."""
        self._stage0 = stage0
        self._encoded: deque[Encoded] = deque()
        self._next, self._chunks = 0, self.plan.chunks or 0
        timeout_s = plane.groups.timeout_s  # the environment may have made it shorter than the plan's
        self._heartbeat_s = min(self.plan.heartbeat_s or timeout_s / 4, timeout_s / 2)
        self._last_sent_s = time.monotonic()

    @property
    def more(self) -> bool:
        """Whether the source may have another chunk."""
        return self._next < self._chunks

    @property
    def encoded(self) -> int:
        """Number of chunks that are encoded and have not left."""
        return len(self._encoded)

    @property
    def left(self) -> int:
        """Number of chunks that have left and are not decoded: in flight, or their result is here."""
        return len(self.plane.session.in_flight)

    @property
    def unfinished(self) -> int:
        """Number of chunks that ``in_flight_depth`` bounds: encoded or left, and not emitted."""
        return self.encoded + self.left

    def encode(self) -> bool:
        """Encode the next chunk, which then waits to leave; say whether the source had one.

        A source that pauses is not waited for: a result that is here is decoded, or the link kept alive.
        """
        index = self._next
        recompute = recompute_at(self.plan.recompute_every, index)
        start_ns = time.monotonic_ns()
        expected = self._ids_expected(index)
        with self.plane.on_device("encode", expected), stage_code("encode", expected):
            tensors = encode_chunk(self._stage0, index, recompute=recompute)
        if tensors is NOT_YET:
            if self.plane.results_here:
                self.decode()
            self._keep_alive()
            return False
        if tensors is None:
            self._chunks = index
            return False
        self._encoded.append(Encoded(tensors, recompute, start_ns, time.monotonic_ns()))
        self._next += 1
        return True

    def send(self) -> None:
        """Let the oldest encoded chunk leave."""
        chunk, index = self._encoded.popleft(), self.plane.session.last_ids.chunk_index + 1
        flush = index in self.plan.flushes
        cut = flush or index in self.plan.hard_cuts
        # Not before now: a heartbeat may have taken the call_id that was expected at the encode.
        ids = self.plane.session.next_ids(PPAction.INFER, hard_cut=cut)
        self.plane.recorder.add_span("encode", chunk.start_ns, end_ns=chunk.end_ns, ids=ids.where())
        before = [one.ids.chunk_index for one in self.plane.session.in_flight] if flush else []
        self.plane.send(chunk.tensors, hard_cut=cut, flush=flush, recompute=chunk.recompute)
        self._last_sent_s = time.monotonic()
        if flush:
            stale = ", ".join(map(str, before)) or "none"
            log.info("flush at chunk %d: in flight, now stale: %s", index, stale)

    def decode(self) -> None:
        """Wait for the oldest result, decode and emit it; a stale one is dropped (rule R3)."""
        self._keep_alive()
        result, good = self.plane.receive_result()
        if good:
            self._emit(result)
        else:
            self.plane.recorder.instant("drop", ids=result.ids.where())
            log.info("chunk %d was stale and dropped", result.ids.chunk_index)
        self.plane.release_result()

    def _emit(self, result: PPResult) -> None:
        ids, recorder = result.ids, self.plane.recorder
        with self.plane.timed("decode", ids), stage_code("decode", ids):
            emission = self._stage0.decode(ids.chunk_index, result.tensors)
        figures = {"stage1_ms": result.stage1_ns / 1e6, **emission.metrics}
        recorder.instant("emit", figures=figures, ids=ids.where())
        # Not at INFO: the span file has it, and a line in the log costs 70 us of every period.
        log.debug("chunk %d emitted, stage 1 took %.1f ms", ids.chunk_index, figures["stage1_ms"])
        if self.plan.verify:
            self.kept[ids.chunk_index] = emission.output

    def _keep_alive(self) -> None:
        """Send a NOOP if nothing has left for long; a link that still carries an envelope needs none."""
        if time.monotonic() - self._last_sent_s >= self._heartbeat_s and not self.plane.sending:
            self.plane.heartbeat()
            self._last_sent_s = time.monotonic()
            log.info("heartbeat after chunk %d", self.plane.session.last_ids.chunk_index)

    def _ids_expected(self, index: int) -> Ids:
        call_id = self.plane.session.last_ids.call_id + 1 + self.encoded
        return Ids(call_id, index, sum(cut <= index for cut in self.plan.hard_cuts + self.plan.flushes))


def generate(plane: PPControlPlane, generator: Generator, envelope: PPEnvelope) -> tuple[PPResult, Timed]:
    """Run a chunk on this mesh rank behind its guards, time it, and check its call count (rule R4).

    On CUDA it has only been launched when this returns.

    Args:
        plane: This rank's.
        generator: Stage 1. Of a class from ``tally.counted`` the calls that entered it are counted, of any
            other those that were made here.
        envelope: The chunk.

    Raises:
        LocalProtocolError: A collective on another group, one that the mesh ranks do not all make, a call of
            the generator too many or too few, or an input that is not the leader's (see ``tensor_parallel``,
            ``tally``, ``digests`` for the ranks that see it).
        StageError: The stage raised (this mesh rank).
    """
    ids, groups = envelope.ids, plane.groups
    with plane.timed("generate", ids) as took, stage_code("generate", ids), only_group(groups, "tp_pg"):
        if plane.plan.digests:
            compare_inputs(groups, envelope)
        with counting(groups, envelope):
            tensors, calls = run_chunk(generator, envelope.plan, envelope.tensors)
            if getattr(generator, "calls_are_counted", False):
                calls = groups.tally.calls
            plane.computed(calls)
    return PPResult(PPAction.INFER, ids, calls, took.host_ns, {}, tensors), took


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


def encode_chunk(stage0: Stage0, chunk_index: int, *, recompute: bool) -> Tensors | Pause | None:
    """Encode a chunk, with its context frames if they are asked for; shared with the reference."""
    tensors = stage0.encode(chunk_index)
    if tensors is None or tensors is NOT_YET:
        return tensors
    extra = stage0.context_frames(chunk_index) if recompute else {}
    return {**tensors, **extra}


@contextmanager
def stage_code(step: str, ids: Ids | None = None) -> Iterator[None]:
    """Run user code, in view of the watchdog; what it raises becomes a ``StageError``, itself as the cause.

    Raises:
        StageError: The body raised something that is not ours (the rank that ran it).
    """
    outer = activity.enter(step, ids)
    try:
        yield
    except PPWorkError as error:
        error.at(**(ids.where() if ids is not None else {}))
        raise
    except Exception as error:
        raise StageError(
            f"The stage's {step} raised {text_of(error)}",
            where=ids.where() if ids is not None else {},
            check_first="the traceback above: the last frame outside ppwork is yours",
        ) from error
    finally:
        activity.leave(outer)
