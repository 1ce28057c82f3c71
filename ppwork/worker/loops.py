"""The role loops, side by side, and below them the steps of the loops: one chunk after another.

Stage 0 has three schedules: the sequential one, the one that overlaps, and the classic mistake. They differ
only in when the next envelope leaves; the mesh runs the same loop under all of them. The loops know stages
and the control plane, but no groups or bytes. The single-process reference also uses ``settle_numbers``,
``run_chunk`` and ``encode_chunk``, so both compute the same.
"""

from __future__ import annotations

import logging
import time
from collections import defaultdict, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from ppwork.plan import Plan
from ppwork.protocol.envelope import CONTEXT_PREFIX, ChunkPlan, PPAction, PPEnvelope, PPResult
from ppwork.records.run import NO_EMISSION, NOTHING_RESET, OUTPUTS_FILE, RETURNED_FILE, STREAM_ENDED
from ppwork.records.spans import SOURCE_MS, STAGE1_MS, WhichChunk
from ppwork.runtime import FollowerPlane, LeaderPlane, MeshPlane, Stage0Plane
from ppwork.runtime.plane import Timed
from ppwork.stage import Chunk, Emission, Generator, Pause, Result, Stage0, Tensors
from ppwork.worker import progress
from ppwork.worker.backend_wait import tell_of_handles
from ppwork.worker.collectives import counting
from ppwork.worker.contract import (
    NOTHING,
    chunk_of,
    emission_of,
    name_what_came,
    optional,
    result_of_step,
    returned_by,
    site_of_return,
    tensors_of,
    wanted,
    why_ended,
)
from ppwork.worker.digests import (
    Received,
    compare_inputs,
    compare_results,
    look_at_results,
    note_metadata,
    sampled,
    tell_apart,
)
from ppwork.worker.stage_code import StageCode
from ppwork.worker.summary import Kept, real
from ppwork.worker.tally import Tally

log = logging.getLogger(__name__)


def stage0_loop(plane: Stage0Plane, plan: Plan, stage0: Stage0) -> Kept:
    """Rank 0: run the plan's schedule, then shut down.

    Returns:
        As ``Stage0Steps.kept``.
    """
    steps = Stage0Steps(plane, plan, stage0)
    if plan.in_flight_depth == 1:
        run_sequential(steps)
    elif plan.schedule == "overlap":
        run_overlap(steps)
    else:
        run_send_after_decode(steps)
    plane.shutdown()
    return steps.kept


def run_sequential(steps: Stage0Steps) -> None:
    """Rank 0, "PP0": one chunk at a time, each step after the other."""
    while steps.has_more:
        if steps.encode():
            steps.send()
            steps.decode()


def run_overlap(steps: Stage0Steps) -> None:
    """Rank 0: envelope k+1 leaves *before* result k is decoded.

    At most ``in_flight_depth`` chunks are unfinished, and of the chunks that have left at most ``d_in`` have
    no result here. The plane enforces ``d_out``: a result that finds no room waits at the leader, and counts
    as in flight.
    """
    d_in, _ = steps.plan.bounds
    while steps.has_more or steps.unfinished:
        results_ready = steps.plane.results_ready  # read once: results arrive meanwhile
        if steps.encoded and steps.in_flight - results_ready < d_in:
            steps.send()
        elif steps.has_more and steps.unfinished < steps.plan.in_flight_depth:
            steps.encode()
        elif steps.encoded and not results_ready:
            steps.plane.await_result()  # makes room to send, which comes before the result's decode
        else:
            steps.decode()


def run_send_after_decode(steps: Stage0Steps) -> None:
    """Rank 0, the classic mistake: encoding goes on, but envelope k+1 leaves *after* chunk k is decoded."""
    while steps.has_more or steps.unfinished:
        if steps.encoded and not steps.in_flight:
            steps.send()
        elif steps.has_more and steps.unfinished < steps.plan.in_flight_depth:
            steps.encode()
        else:
            steps.decode()


def leader_loop(plane: LeaderPlane, plan: Plan, generator: Generator, tally: Tally) -> None:
    """Rank 1: receive, pass on to the mesh, compute with the mesh, return exactly one result per chunk."""
    while (envelope := _received(plane, generator)).action is not PPAction.SHUTDOWN:
        if envelope.action is PPAction.INFER:
            result, took = generate(plane, plan, generator, tally, envelope)
            with returned_by(generator, "step"):
                plane.send_result(result, took)
    plane.acknowledge()


def _received(plane: LeaderPlane, generator: Generator) -> PPEnvelope:
    with returned_by(generator, "step"):  # the tensors of an earlier result were written to since
        return plane.receive()


def follower_loop(plane: FollowerPlane, plan: Plan, generator: Generator, tally: Tally) -> None:
    """The other mesh ranks: receive from the leader, compute with the mesh."""
    while (envelope := plane.receive()).action is not PPAction.SHUTDOWN:
        if envelope.action is PPAction.INFER:
            generate(plane, plan, generator, tally, envelope)
    plane.acknowledge()


@dataclass(frozen=True)
class EncodedChunk:
    """A chunk that waits to leave."""

    index: int
    chunk: Chunk
    recompute: bool
    start_ns: int
    end_ns: int


class Stage0Steps:
    """Rank 0's chunks; each is unfinished from its encode to its emission."""

    def __init__(self, plane: Stage0Plane, plan: Plan, stage0: Stage0) -> None:
        self.plane, self.plan = plane, plan
        self.kept: Kept = {OUTPUTS_FILE: {}} if plan.verify or plan.keep_outputs else {}
        """Emitted tensors; to be verified also what they were decoded from, of which they may be a part."""
        self.kept |= {RETURNED_FILE: {}} if plan.verify else {}
        self._stage0 = stage0
        self._encoded: deque[EncodedChunk] = deque()
        self._metadata: dict[int, Mapping[str, Any]] = {}
        self._source_ns: defaultdict[int, int] = defaultdict(int)
        """For each chunk not emitted yet: the time for which its source said that it had none."""
        self._next = 0
        self._chunks = plan.chunks
        """Most chunks; ``None`` until the source says that it has ended."""
        timeout_s = plane.groups.timeout_s  # the environment may have made it shorter than the plan's
        self._heartbeat_s = min(plan.heartbeat_s or timeout_s / 4, timeout_s / 2)
        self._last_sent_s = time.monotonic()

    @property
    def has_more(self) -> bool:
        """Whether the source may have another chunk."""
        return self._chunks is None or self._next < self._chunks

    @property
    def encoded(self) -> int:
        """Number of chunks that are encoded and have not left."""
        return len(self._encoded)

    @property
    def in_flight(self) -> int:
        """Number of chunks that have left and are not decoded: on their way, or with a result here."""
        return len(self.plane.session.in_flight)

    @property
    def unfinished(self) -> int:
        """Number of chunks that ``in_flight_depth`` bounds: encoded or left, and not emitted."""
        return self.encoded + self.in_flight

    def encode(self) -> bool:
        """Encode the next chunk, which then waits to leave; return whether the source had one.

        If the source pauses, do not wait: decode a result that is here, and keep the link alive.
        """
        index = self._next
        recompute = recompute_at(self.plan.recompute_every, index)
        start_ns = time.monotonic_ns()
        # Its ids are made when it leaves: a heartbeat may take the next call_id before that.
        which = {"chunk_index": index}
        with self.plane.on_device("encode", which), self._stage_code("encode", which) as code:
            chunk = encode_chunk(self._stage0, index, recompute=recompute, entering=code.entering)
        progress.source_has(chunk=not isinstance(chunk, Pause))
        if isinstance(chunk, Pause):
            self._source_ns[index] += time.monotonic_ns() - start_ns
            if self.plane.results_ready:
                self.decode()
            self._keep_alive()
            return False
        if chunk is None:
            self._chunks = index
            if asked := why_ended(self._stage0, index):
                self.plane.recorder.instant(STREAM_ENDED, ids=which, text=asked)
                log.warning(asked)
            return False
        self._encoded.append(EncodedChunk(index, chunk, recompute, start_ns, time.monotonic_ns()))
        self._next += 1
        return True

    def send(self) -> None:
        """Let the oldest encoded chunk leave."""
        encoded = self._encoded.popleft()
        index, chunk = encoded.index, encoded.chunk
        flush, cut = resets_at(self.plan, index, chunk)
        self._metadata[index] = chunk.metadata
        stale = [entry.ids.chunk_index for entry in self.plane.session.in_flight] if flush else []
        # Before it leaves: a refused chunk has been encoded, too.
        ids = self.plane.session.next_ids(PPAction.INFER, hard_cut=cut).where()
        start_ns, end_ns = encoded.start_ns, encoded.end_ns
        self.plane.recorder.add_span("encode", start_ns, end_ns=end_ns, ids=ids, more=True)
        with returned_by(self._stage0, "encode"):
            self.plane.send(
                chunk.tensors,
                metadata=chunk.metadata,
                hard_cut=cut,
                flush=flush,
                recompute=encoded.recompute,
                steps=chunk.steps,
            )
        self._last_sent_s = time.monotonic()
        if flush:
            text = ", ".join(map(str, stale)) or "none"
            log.info("flush at chunk %d: in flight, now stale: %s", index, text)

    def decode(self) -> None:
        """Wait for the oldest result, decode and emit it; drop it if it is stale (rule R3)."""
        self._keep_alive()
        with returned_by(self._stage0, "encode"):  # it was written to since
            result, good = self.plane.receive_result()
        metadata = self._metadata.pop(result.ids.chunk_index)
        if good:
            self._emit(result, metadata)
        else:
            self.plane.recorder.instant("drop", ids=result.ids.where())
            log.info("chunk %d was stale and dropped", result.ids.chunk_index)
        self.plane.release_result()

    def _emit(self, result: PPResult, metadata: Mapping[str, Any]) -> None:
        index, which, recorder = result.ids.chunk_index, result.ids.where(), self.plane.recorder
        with self.plane.timed("decode", which, more=True), self._stage_code("decode", which):
            computed = Result(result.tensors, result.metadata)
            emission = decode_chunk(self._stage0, index, computed, metadata, verify=self.plan.verify)
        figures = {STAGE1_MS: result.stage1_ns / 1e6, **emission.metrics}
        if source_ns := self._source_ns.pop(index, 0):
            figures[SOURCE_MS] = source_ns / 1e6
        text = NO_EMISSION if emission is NOTHING else ""
        recorder.instant("emit", figures=figures, ids=which, text=text)
        # Not at INFO: the span file has it, and a log line costs 70 us of every period.
        log.debug("chunk %d emitted, stage 1 took %.1f ms", index, figures[STAGE1_MS])
        if OUTPUTS_FILE in self.kept:
            self.kept[OUTPUTS_FILE][index] = emission.output
        if RETURNED_FILE in self.kept:  # copies: the next result gets their memory
            copies = {name: real(each.to("cpu", copy=True)) for name, each in result.tensors.items()}
            self.kept[RETURNED_FILE][index] = copies

    def _stage_code(self, step: str, which: WhichChunk) -> StageCode:
        for waiting in self._encoded:  # the step must not write to their tensors
            self.plane.lent.lend(waiting.index, waiting.chunk.tensors, passed=False)
        checked, index = self.plan.compare_collectives, which["chunk_index"]
        return StageCode(step, self._stage0, self.plane.groups, which, seen=checked < 0 or index < checked)

    def _keep_alive(self) -> None:
        """Send a NOOP if nothing has left for long; a link that still carries an envelope needs none."""
        if time.monotonic() - self._last_sent_s >= self._heartbeat_s and not self.plane.sending:
            self.plane.heartbeat()
            self._last_sent_s = time.monotonic()
            log.info("heartbeat after chunk %d", self.plane.session.last_ids.chunk_index)


def generate(
    plane: MeshPlane, plan: Plan, generator: Generator, tally: Tally, envelope: PPEnvelope
) -> tuple[PPResult, Timed]:
    """Run a chunk on this mesh rank behind its guards, time it, and check its call count (rule R4).

    On CUDA the work is only launched when this returns. If the generator's class is from ``tally.counted``,
    the calls that entered the generator are counted; else the calls that ``run_chunk`` made.

    Raises:
        LocalProtocolError: A collective was on another group, or not all mesh ranks made it, the generator
            had too many or too few calls, or an input differs from the leader's (``collectives``, ``tally``
            and ``digests`` say which ranks raise it).
        StageError: The stage raised (this mesh rank).
    """
    groups, which = plane.groups, envelope.ids.where()
    tally.kinds.add(envelope.tensors)
    received = Received(envelope.tensors)
    code = StageCode("generate", generator, groups, which, kinds=tally.kinds)
    tally.returns = tally.returns or site_of_return(generator, "step")
    with plane.timed("generate", which) as took, code:
        if plan.digests:
            compare_inputs(groups, envelope)
        with counting(groups, tally, envelope) as chunk_plan:
            if chunk_plan.reset_cache and not hasattr(generator, "reset_cache"):
                _say_that_nothing_is_reset(plane, generator, tally, which)
            given = envelope.tensors, envelope.metadata
            result, calls = run_chunk(generator, chunk_plan, *given, entering=code.entering)
            if getattr(generator, "calls_are_counted", False):
                calls = tally.calls
            if plan.digests:
                compare_results(groups, envelope.ids, result)
            elif tally.shared is not None and not tally.comparing:
                tally.digest = sampled(result.tensors)
            plane.computed(calls)
            is_looked_at = tally.comparing and not plan.digests and groups.device.type == "cpu"
        received.note(plane.recorder, envelope.ids)
        note_metadata(result.metadata, plane.recorder, envelope.ids)
        tell_of_handles(envelope.ids, plane.recorder)
        if is_looked_at:  # only after the chunk's collectives have turned out to be the same
            look_at_results(groups, envelope.ids, result, plane.recorder)
        elif tally.shared is not None and tally.odd:
            tell_apart(tally.shared, envelope.ids, tally.odd, plane.recorder)
    took_ns = took.host_ns
    return PPResult(PPAction.INFER, envelope.ids, calls, took_ns, result.metadata, result.tensors), took


def _say_that_nothing_is_reset(
    plane: MeshPlane, generator: Generator, tally: Tally, which: WhichChunk
) -> None:
    """Record a cut that reaches a generator without ``reset_cache``; log only the first."""
    plane.recorder.instant(NOTHING_RESET, ids=which)
    if not tally.told_of_cut:
        tally.told_of_cut = True
        text = "chunk %d came with a cut, and %s has no reset_cache: nothing was reset"
        log.warning(text, which["chunk_index"], type(generator).__name__)


def recompute_at(every: int, chunk_index: int) -> bool:
    """Say whether the cache is rebuilt before this chunk; the reference run asks the same question."""
    return every > 0 and chunk_index > 0 and chunk_index % every == 0


def settle_numbers(plan: Plan) -> None:
    """Let this process round as the run's other processes and the reference do."""
    torch.set_num_threads(plan.threads_per_rank)
    if plan.verify:
        # TF32 is cuDNN's default; for a part of a convolution it may choose another algorithm.
        torch.backends.cudnn.allow_tf32 = False


def resets_at(plan: Plan, chunk_index: int, chunk: Chunk) -> tuple[bool, bool]:
    """Say whether a chunk comes with a flush, and with a cut; a flush is also a cut."""
    flush = chunk.flush or chunk_index in plan.flushes
    return flush, flush or chunk.hard_cut or chunk_index in plan.hard_cuts


def _unseen(_: str) -> None:
    """Ignore the name of the stage's next method."""


def run_chunk(
    generator: Generator,
    plan: ChunkPlan,
    tensors: Tensors,
    metadata: Mapping[str, Any],
    *,
    entering: Callable[[str], None] = _unseen,
) -> tuple[Result, int]:
    """Carry out a chunk's plan on one rank; both the pipeline and the single-process reference do this.

    Only recompute gets the envelope's tensors named ``context.*``. ``entering`` is told which method is
    called next.

    Returns:
        The last step's tensors with the metadata of all steps, and the number of generator calls made.
    """
    calls = 0
    if plan.reset_cache:
        entering("reset_cache")
        optional(generator, "reset_cache")()
    if plan.recompute:
        entering("recompute")
        optional(generator, "recompute")({k: v for k, v in tensors.items() if k.startswith(CONTEXT_PREFIX)})
        calls += 1
    current = Result({k: v for k, v in tensors.items() if not k.startswith(CONTEXT_PREFIX)})
    entering("step")
    more = wanted(generator.step, metadata=metadata)
    for step_index in range(plan.steps):
        try:
            returned = generator.step(current.tensors, step_index, plan.steps, **more)
        except KeyError as error:
            name_what_came(error, tensors=current.tensors, **more)
            raise
        result = result_of_step(generator, returned)
        current = Result(result.tensors, {**current.metadata, **result.metadata})
        calls += 1
    return current, calls


def encode_chunk(
    stage0: Stage0, chunk_index: int, *, recompute: bool, entering: Callable[[str], None] = _unseen
) -> Chunk | Pause | None:
    """Encode a chunk, with its context frames if they are asked for; shared with the reference."""
    chunk = chunk_of(stage0, stage0.encode(chunk_index))
    if not (recompute and isinstance(chunk, Chunk)):
        return chunk
    entering("context_frames")
    frames = tensors_of(stage0, "context_frames", optional(stage0, "context_frames")(chunk_index))
    return replace(chunk, tensors={**chunk.tensors, **frames})


def decode_chunk(
    stage0: Stage0, chunk_index: int, result: Result, metadata: Mapping[str, Any], *, verify: bool
) -> Emission:
    """Decode the result of a chunk, given the chunk's metadata; shared with the reference."""
    more = wanted(stage0.decode, metadata=metadata, result_metadata=result.metadata)
    try:
        decoded = stage0.decode(chunk_index, result.tensors, **more)
    except KeyError as error:
        name_what_came(error, tensors=result.tensors, **more)
        raise
    return emission_of(stage0, decoded, verify=verify)
