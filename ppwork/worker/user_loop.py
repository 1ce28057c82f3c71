"""A user's own loop, seen from the plane's calls: the work between two calls is recorded under a name.

On the mesh the name is ``generate``, from the chunk's arrival, or from the answer before it if that came
later, to ``reply`` (or ``computed``). On rank 0 it is ``encode`` if the work ends with ``send``, else
``decode`` of the last result; if a loop decodes one chunk and encodes the next between the same two calls,
``release_result`` separates them. A step that the loop times itself, with ``plane.timed``, is not recorded
twice. A collective on the default group, and the creation of a group by all ranks, are refused on the mesh
from a chunk to its answer, and on rank 0 while chunks are on their way. The watchdog bounds the work as a
step of a stage: on rank 0 only from the first call of the plane, because a model may load before that, until
the loop ends the stream. Without a folder nothing is recorded or watched, but the same calls are refused.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

import msgspec

from ppwork.errors import LocalProtocolError, PPWorkError
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.session import Session
from ppwork.protocol.topology import STAGE0_RANK, Role
from ppwork.records.run import NOTHING_RESET, OUTPUTS_FILE, UNRELEASED
from ppwork.records.spans import STAGE1_MS, Recorder, WhichChunk
from ppwork.runtime import Groups, MeshPlane, PPControlPlane
from ppwork.worker import progress
from ppwork.worker.backend_wait import tell_of_handles
from ppwork.worker.collectives import guard_loop, heed, install, keep
from ppwork.worker.contract import Kinds, name_what_came
from ppwork.worker.digests import Received, note_metadata, sampled, tell_apart
from ppwork.worker.shared_calls import SharedCalls, held
from ppwork.worker.summary import Kept
from ppwork.worker.tally import NO_RESULT

if TYPE_CHECKING:
    import torch

log = logging.getLogger(__name__)

WAITS = ("receive_result", "await_result", "shutdown")
"""Calls of rank 0 that wait for the mesh's next message."""
UNASKED = "chunk %d came with a cut, and the loop did not read `chunk.plan.reset_cache`: was nothing reset?"
UNCOMPARED = "`plane.compare` compared nothing: %s (said once)"
NOBODY_HERE = "no other mesh rank shares this host and its run folder"
NOT_RELEASED = (
    "`%s` was called without `release_result` for chunk %d: that may have held the next result back, and "
    "hides its decode from records; call `plane.release_result()` after each decode (said once)"
)
_LATER = "`ppwork diagnose` on the run folder tells of later chunks"


class CutPlan(ChunkPlan, frozen=True):
    """The plan of a chunk with a cut, which notes that the loop asks for it."""

    asked: list[str] = []  # noqa: RUF012  msgspec copies it

    def __getattribute__(self, name: str) -> Any:  # noqa: ANN401  any attribute
        if name == "reset_cache":
            self.asked.append(name)
        return super().__getattribute__(name)


class UserLoop:
    """Records a loop's spans, shows its step to the watchdog, and compares its collectives.

    A context manager whose body is the loop.

    Args:
        recorder: This rank's recorder.
        calls: See the attribute.
        guarded: Groups that the guards need; ``None``: nothing is refused.
        sent: On rank 0 its session, which knows the chunks on their way; ``None`` on the mesh.
        planned: On rank 0 the plan's number of chunks, if it has one.
        keeps: Keep the results, for the run folder.
        alone: Why ``compare`` has no rank to compare with, if there are others in the mesh.

    Attributes:
        kept: On rank 0, if it keeps them: each good result's tensors, by chunk index and name.
        calls: Compares this mesh rank's collectives; ``None`` if there is no rank to compare with.
    """

    def __init__(
        self,
        recorder: Recorder,
        calls: SharedCalls | None,
        guarded: Groups | None = None,
        *,
        sent: Session | None = None,
        planned: int | None = None,
        keeps: bool = False,
        alone: str = "",
    ) -> None:
        self.calls, self._alone = calls, alone
        self._compared = False
        """Whether the loop has called ``compare``."""
        self.kept: Kept = {OUTPUTS_FILE: {}} if keeps else {}
        self._recorder, self._guarded, self._sent, self._planned = recorder, guarded, sent, planned
        self._since_ns = time.monotonic_ns()
        """When the last call of the plane ended."""
        self._chunk_since_ns = 0
        """On a mesh rank: since when its oldest chunk has been the next to be answered."""
        self._encoded = (0, 0)
        self._held: tuple[PPResult, bool] | None = None
        """The last result, until a call shows that it is decoded."""
        self._told = False
        """Whether the log has said that ``release_result`` is not called."""
        self._chunks: deque[Ids] = deque()
        self._received: deque[Received] = deque()
        self._cuts: dict[int, list[str]] = {}
        """On a mesh rank, by chunk with a cut: empty while the loop has not asked for the cut."""
        self._told_of_cut = False
        self._last: WhichChunk | None = None
        """On rank 0: the chunk that it sent or received last, or after its decode the next one to send."""
        self._came: dict[str, tuple[str, ...]] = {}
        """Names of the tensors and the metadata that the loop received last; empty: nothing has come."""
        self._kinds = Kinds()
        self._own: set[str] = set()
        self._digest = NO_RESULT
        """On a mesh rank: digest and shapes of the answer that is about to be given."""

    @classmethod
    def of(cls, plane: PPControlPlane) -> Self:
        """Return the object that watches the loop of a plane.

        Raises:
            OSError: A file of the folder cannot be made (this rank).
        """
        install()
        if not isinstance(plane, MeshPlane):
            return cls(
                plane.recorder,
                None,
                plane.groups,
                sent=plane.session,
                planned=getattr(plane.plan, "chunks", None),
                keeps=plane.run_dir is not None and getattr(plane.plan, "keep_outputs", False),
            )
        if plane.groups.topology.mesh_size == 1:
            return cls(plane.recorder, None, plane.groups)
        if plane.run_dir is None:
            return cls(plane.recorder, None, plane.groups, alone="`join` got no run_dir")
        if plane.plan.compare_collectives == 0:
            return cls(plane.recorder, None, plane.groups, alone="the plan's compare_collectives is 0")
        return cls(plane.recorder, SharedCalls(plane.groups, plane.run_dir), plane.groups)

    def __enter__(self) -> Self:
        keep(self._guarded)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, KeyError):
            name_what_came(error, **self._came)
        if error is not None and not isinstance(error, PPWorkError):
            for change in self._kinds.change("this chunk" if self._sent is None else "the last result"):
                error.add_note(change)
        progress.leave(None)
        self._guard(None)
        keep(None)
        if self.calls is not None:
            if self._compared and self.calls.alone:
                log.warning(UNCOMPARED, NOBODY_HERE)
            self.calls.close()

    def timed(self, name: str) -> None:
        """Leave a step to the loop, which times it itself."""
        self._own.add(name)

    def answered(self, tensors: Mapping[str, object], metadata: Mapping[str, Any]) -> None:
        """Take a sample of the tensors given to ``reply``, to compare it with the other mesh ranks'."""
        note_metadata(metadata, self._recorder, self._chunks[0])
        self._digest = NO_RESULT if self.calls is None else sampled(tensors)

    def compare(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compare what this mesh rank holds with the other mesh ranks of its host.

        Raises:
            LocalProtocolError: Another one holds another tensor (this rank).
        """
        if self.calls is not None:
            for name, tensor in tensors.items():
                self.calls.state(held(name, tensor))
        elif self._alone and not self._compared:
            log.warning(UNCOMPARED, self._alone)
        self._compared = True

    def called(self, call: str) -> None:
        """Record the loop's work since the plane's last call.

        Raises:
            LocalProtocolError: The chunk ends with other collectives than on another mesh rank (this rank),
                or the loop is about to send more chunks than its plan has (rank 0).
        """
        if call == "send" and self._planned is not None and self._next_chunk == self._planned:
            raise LocalProtocolError(
                f"A chunk more than the {self._planned} of the plan was about to leave.",
                where={"rank": STAGE0_RANK, "role": str(Role.STAGE0), "chunk_index": self._planned},
                check_first="`Plan(chunks=...)`: a loop that does not know its number has none in its plan",
            )
        heed()
        self._guard(None)  # the plane's own calls use its own groups
        if call in ("shutdown", "acknowledge"):  # from here on the job may do as it likes
            keep(None)
        if call == "shutdown" and self._planned not in (None, self._next_chunk):
            log.warning("the loop sent %d chunks; its plan has chunks=%d", self._next_chunk, self._planned)
        if call == "reply":
            return  # it calls ``computed``, which ends the chunk
        now_ns = time.monotonic_ns()
        if self._sent is not None:
            progress.leave(None)
            if call == "release_result":
                self._last = {"chunk_index": self._next_chunk}
        if call == "send":
            self._encoded = self._since_ns, now_ns
        elif self._held is not None:
            if call in WAITS and not self._told:
                self._told = True
                log.warning(NOT_RELEASED, call, self._held[0].ids.chunk_index)
                self._recorder.instant(UNRELEASED, ids=self._held[0].ids.where())
            self._emit(*self._held, now_ns)
            self._held = None
        elif call == "computed" and self._chunks:
            self._end_chunk(now_ns)
        self._since_ns = now_ns

    def returned(self, message: PPEnvelope | PPResult | Ids | None, *, good: bool = True) -> None:
        """Begin the loop's next work, with this message."""
        keep(self._guarded)
        if isinstance(message, PPResult | PPEnvelope) and message.action is PPAction.INFER:
            self._came = {"tensors": tuple(message.tensors), "metadata": tuple(message.metadata)}
            self._kinds.add(message.tensors)
        if isinstance(message, Ids):
            self._record("encode", *self._encoded, message)
        elif isinstance(message, PPResult):
            self._held = message, good
            if good and self.kept:  # a copy: the tensors are the loop's, which may write to them
                kept = {name: tensor.clone() for name, tensor in message.tensors.items()}
                only = kept.popitem()[1] if len(kept) == 1 else kept
                self.kept[OUTPUTS_FILE][message.ids.chunk_index] = only
        elif message is not None and message.action is PPAction.INFER:
            self._chunks.append(message.ids)
            self._received.append(Received(message.tensors))
            if (plan := message.plan) is not None and plan.reset_cache:
                noting = CutPlan(*msgspec.structs.astuple(plan))
                self._cuts[message.ids.chunk_index] = noting.asked
                msgspec.structs.force_setattr(message, "plan", noting)
            if len(self._chunks) == 1:
                self._begin_chunk()
        if self._sent is not None:
            if message is not None:
                self._last = (message if isinstance(message, Ids) else message.ids).where()
            progress.enter(progress.LOOP, self._last)
            self._guard(self._sent.in_flight[0].ids.where() if self._sent.in_flight else None)
        elif self._chunks:
            self._guard(self._chunks[0].where())
        self._since_ns = time.monotonic_ns()

    @property
    def _next_chunk(self) -> int:
        return -1 if self._sent is None else self._sent.next_ids(PPAction.INFER).chunk_index

    def _guard(self, which: WhichChunk | None) -> None:
        if self._guarded is not None:
            guard_loop(self._guarded, which)

    def _begin_chunk(self) -> None:
        oldest, self._chunk_since_ns = self._chunks[0], time.monotonic_ns()
        progress.enter("generate", oldest.where(), of_loop=True)
        if self.calls is not None:
            self.calls.begin(oldest)

    def _end_chunk(self, now_ns: int) -> None:
        progress.leave(None)
        ids = self._chunks.popleft()
        self._received.popleft().note(self._recorder, ids)
        self._record("generate", self._chunk_since_ns, now_ns, ids)
        if self.calls is not None:
            digest, self._digest = self._digest, NO_RESULT
            if odd := self.calls.end(*digest):
                tell_apart(self.calls, ids, odd, self._recorder, _LATER)
        if self._cuts.pop(ids.chunk_index, None) == []:
            self._recorder.instant(NOTHING_RESET, ids=ids.where())
            log.log(logging.DEBUG if self._told_of_cut else logging.WARNING, UNASKED, ids.chunk_index)
            self._told_of_cut = True
        tell_of_handles(ids, self._recorder)
        if self._chunks:  # the loop has received ahead
            self._begin_chunk()

    def _emit(self, result: PPResult, good: bool, now_ns: int) -> None:
        if not good:
            self._recorder.instant("drop", ids=result.ids.where())
            return
        self._record("decode", self._since_ns, now_ns, result.ids)
        figures = {STAGE1_MS: result.stage1_ns / 1e6}
        self._recorder.instant("emit", figures=figures, ids=result.ids.where())

    def _record(self, name: str, start_ns: int, end_ns: int, ids: Ids) -> None:
        if name not in self._own:
            self._recorder.add_span(name, start_ns, end_ns=end_ns, ids=ids.where())
