"""``PPControlPlane``: the whole runtime of one rank, as your own prototype would use it.

This module has what every rank needs: session, lanes, commitment points, the way out. ``Stage0Plane`` adds
rank 0's part, ``MeshPlane`` a mesh rank's. Every failure goes through ``fail``, which first writes this
rank's record and then tells the peers.
"""

from __future__ import annotations

import atexit
import logging
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from types import CodeType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self, TypeVar

from torch.distributed.device_mesh import DeviceMesh

from ppwork.errors import LocalProtocolError, PeerTimeoutError, RemoteProtocolError, WrongRoleError
from ppwork.protocol.backend_errors import SILENT_PEER_CHECK, as_peer_error, is_backends
from ppwork.protocol.envelope import Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.notices import notice_of, notices
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.session import COMMITMENT_POINTS, Session
from ppwork.protocol.states import State
from ppwork.protocol.topology import Role
from ppwork.records.spans import Recorder, WhichChunk
from ppwork.runtime.cuda_links import CudaLinks
from ppwork.runtime.cuda_spans import DeviceSpan
from ppwork.runtime.groups import Groups, join
from ppwork.runtime.lanes import Lane, LaneStatistics, result_of
from ppwork.runtime.lent import RUNTIME, line_in_loop
from ppwork.runtime.membership import Membership
from ppwork.runtime.messages import Incoming, Outgoing, Preflight, limits_of
from ppwork.runtime.process_exit import leave_hard, leave_hard_if_uncaught

log = logging.getLogger(__name__)

T = TypeVar("T")
NOTICE_TIMEOUT_S = 1.0
"""Seconds that a failing rank spends to tell each peer before it leaves anyway: crash beats hang."""
Hook = Callable[[str, Ids], None]
"""Called just before each of ``COMMITMENT_POINTS``; an injected fault raises here."""
OnFailure = Callable[[BaseException], object]
"""Called once when this rank fails, before any peer hears of the failure: the place to write a record."""


class Watch(Protocol):
    """Observes the user's own loop: it hears of each call of the plane, and of what the call returns."""

    def called(self, call: str) -> None:
        """A call of the plane begins: the loop's own work before it is over."""

    def returned(self, message: PPEnvelope | PPResult | Ids | None, *, good: bool = True) -> None:
        """A call ends, but the loop's last: with what came, the ids of what was sent, or nothing."""

    def timed(self, name: str) -> None:
        """The loop itself times a step of this name."""

    def answered(self, tensors: Mapping[str, object], metadata: Mapping[str, Any]) -> None:
        """``reply`` was called with these."""

    def compare(self, tensors: Mapping[str, Any]) -> None:
        """``compare`` was called with these tensors."""


@dataclass
class Timed:
    """The time of a step, once the step is over."""

    host_ns: int = 0
    on_device: DeviceSpan | None = None


def oldest(waiting: deque[T]) -> T | None:
    """Return the next item. Another thread may take it at any time, so do not ask for the length first."""
    try:
        return waiting[0]
    except IndexError:
        return None


class Sending:
    """A message on its way out: the thread that made it or a lane posts it, and the lane waits for it."""

    def __init__(self, link: Any, outgoing: Outgoing) -> None:  # noqa: ANN401  a sending end
        self.which = outgoing.message.ids.where()
        self.start_ns = 0
        self._link, self._outgoing = link, outgoing
        self._works: list[Any] = []
        self._error: Exception | None = None

    def post(self) -> None:
        """Post the message, once; an error is kept for ``wait``, whose caller reports it."""
        self.start_ns = time.monotonic_ns()
        try:
            self._works = self._link.post(self._outgoing)
        except Exception as error:  # noqa: BLE001
            self._error = error
        del self._outgoing  # the works keep the buffers that are on their way

    def wait(self) -> None:
        """Post the message if nobody has, and wait until the peer has taken it; see ``P2PSender``."""
        if not self.start_ns:
            self.post()
        if self._error is not None:
            raise self._error
        self._link.wait(self._works)
        self._works = []


class PPControlPlane:
    """One rank's end of the pipeline: a ``Stage0Plane`` on rank 0, a ``MeshPlane`` on the other ranks.

    The ``MeshPlane`` of rank 1 is a ``LeaderPlane``, which sends results as well.

    Use it as a context manager: the end of the block closes the groups, and an exception tells the peers.

    Args:
        plan: The plan that the ranks agreed on.
        groups: From ``groups.join``; the plane closes them at the end of its ``with`` block.
        recorder: Gets a span for each step and an instant at each commitment point.
        hook: Called just before each commitment point.
        on_failure: Called with the error that ends this rank, before the peers are told.

    Attributes:
        rank: This rank's number in the pipeline: 0 is stage 0, 1 the leader.
        links: This rank's end of each of its links, by group.
        preflight: Checks and encodes the messages that this rank sends.
        device: The CUDA side of the links; ``None`` without a GPU.
    """

    role: ClassVar[Role]
    """This rank's role."""
    _outbound: ClassVar[str] = ""
    """The link on which this rank sends tensors."""
    _last_call, _left_at = "`acknowledge()`", ""
    """The call that ends this role's work, and the line at which the loop left before that call."""
    _kinds: ClassVar[dict[Role, type[PPControlPlane]]] = {}
    _cuda_kinds: ClassVar[dict[Role, type[PPControlPlane]]] = {}
    """Classes of the roles that have another class on a GPU."""

    def __init_subclass__(cls, role: Role | None = None, *, on_cuda: bool = False) -> None:
        """Register the class that ``join`` makes for a rank of this role; ``on_cuda``: on a GPU only."""
        super().__init_subclass__()
        if role is not None:
            cls.role = role
            (cls._cuda_kinds if on_cuda else cls._kinds)[role] = cls

    def __init__(
        self,
        plan: PipelinePlan,
        groups: Groups,
        recorder: Recorder,
        *,
        hook: Hook | None = None,
        on_failure: OnFailure | None = None,
    ) -> None:
        self.plan, self.groups, self.recorder, self.rank = plan, groups, recorder, groups.rank
        self.session = Session(groups.rank, self.role, plan.in_flight_depth)
        self.links: dict[str, Any] = {}
        on_cuda = groups.device.type == "cuda"
        self.device = CudaLinks(groups, recorder, plan.in_flight_depth) if on_cuda else None
        fill = None if self.device is None else partial(self.device.fill, self._outbound)
        self.preflight = Preflight(limits_of(plan), groups.device, fill)
        self.run_dir: Path | None = None
        """Folder of the run, if it has one."""
        self.watch: Watch | None = None
        """Records the user's own loop, between the plane's calls."""
        self._hook, self._on_failure = hook, on_failure
        # Each chunk in flight can have a job here, and so can one NOOP, SHUTDOWN or notice.
        bound = plan.in_flight_depth + 2
        links = groups.topology.links(groups.rank)
        self._lanes = {name: Lane(name, groups.device, bound=bound) for name in links}
        self._sent_ns = dict.fromkeys(self._lanes, 0)
        self._failing = threading.Lock()
        self._at = Ids(-1, -1, 0)
        self._caller: dict[str, threading.Thread] = {}
        self._called: tuple[str, list[tuple[CodeType, int]]] | None = None  # the last public call, and where
        self.session.joined()

    @classmethod
    def join(
        cls,
        plan: PipelinePlan,
        *,
        ranks: Sequence[int] | None = None,
        mesh: DeviceMesh | None = None,
        groups: Groups | None = None,
        recorder: Recorder | None = None,
        hook: Hook | None = None,
        on_failure: OnFailure | None = None,
    ) -> PPControlPlane:
        """Bring up this process as a rank of a pipeline; see ``groups.join``.

        The job's ranks are those of the default group, if the caller has made one, else torchrun's. One job
        may hold several pipelines, each with its own ranks, or one after another on the same ranks.

        Args:
            plan: As for the class.
            ranks: The job's ranks in this pipeline, ascending: stage 0, then the mesh. Default: all. Inside
                the pipeline they are numbered from 0, in errors and records, too.
            mesh: The mesh ranks as a ``DeviceMesh`` that the caller made on each of them and will end. One
                of GPUs may go with a plan on gloo: chunks and results then travel on the CPU.
            groups: This rank's groups, if they are up already.
            recorder: Keeps spans and instants; by default nothing is kept.
            hook: As for the class.
            on_failure: As for the class.

        Raises:
            PlanError: ``ranks`` or ``mesh`` do not fit, torchrun has not started this process, or it is still
                in another pipeline (``Membership`` and ``groups.join`` say on which ranks).

        Returns:
            A ``Stage0Plane`` on rank 0, a ``MeshPlane`` on the mesh ranks: ask with ``isinstance``.

        Collective:
            All ranks of the pipeline, and no others; none if ``groups`` is given.
        """
        if groups is None:
            groups = join(plan, Membership.here(ranks), mesh)
        kind = cls._kinds[groups.role]
        if groups.device.type == "cuda":
            kind = cls._cuda_kinds.get(groups.role, kind)
        return kind(plan, groups, recorder or Recorder(None), hook=hook, on_failure=on_failure)

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh ranks as torch's ``DeviceMesh``; see ``Groups.device_mesh``."""
        return self.groups.device_mesh

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """After SHUTDOWN: leave in order (rule R10). After an exception: tell the peers, and let it pass.

        Raises:
            LocalProtocolError: The block was left before SHUTDOWN was acknowledged (this rank).
            PeerLostError: The loop's own call of the backend lost a peer; the ``__cause__`` is the backend's
                error (this rank).
            PeerTimeoutError: The loop's own call waited for a silent peer; or a lane did not stop, or a group
                did not end, within its bound (this rank).
        """
        if isinstance(error, SystemExit) and not error.code and self.session.state is not State.CLOSED:
            left_early = self._left_early(" by sys.exit")
            left_early.__cause__ = error  # its traceback has the user's line, which the record shows
            self._give_up(left_early)
            raise left_early  # else the process would leave as if all were well
        if error is not None:
            if (
                isinstance(error, RuntimeError)
                and is_backends(error)
                and (
                    named := as_peer_error(
                        error, f"a call of the loop{line_in_loop(error.__traceback__)}", **self.where
                    )
                )
            ):
                named.__cause__ = error  # its traceback has the user's line, which the record shows
                self._give_up(named)
                raise named
            self._give_up(error)
            return
        if self.session.state is not State.CLOSED:
            left_early = self._left_early()
            left_early.source = self._left_at
            self._give_up(left_early)
            raise left_early
        try:
            self._leave()
        except BaseException:
            leave_hard_if_uncaught()
            atexit.register(leave_hard)
            raise

    def _give_up(self, error: BaseException) -> None:
        # The groups stay as they are: destroying them would wait for peers that may be gone.
        self.fail(error)
        leave_hard_if_uncaught()
        if self.groups.device.type == "cuda":
            atexit.register(leave_hard)

    def _leave(self) -> None:
        where = {"rank": self.groups.rank, "role": str(self.role)}
        # On a thread: neither torch's destroy nor CUDA's synchronize has its own bound.
        last = Lane("leaving", self.groups.device, bound=1)
        if self.device is not None:
            result_of(
                last.submit(self.device.spans.flush), self._patience_s, what="work on the device", **where
            )
        self._stop_ahead()
        for name, lane in self._lanes.items():
            if not lane.close(self._patience_s):  # it may use the group that is about to be destroyed
                raise PeerTimeoutError(
                    f"The lane of {name} did not stop within {self._patience_s:g} s of the last message.",
                    where={**where, "group": name},
                    check_first=SILENT_PEER_CHECK,
                )
        for link in self.links.values():
            link.close()
        left = last.submit(self.groups.close)
        result_of(left, self._patience_s, what="destruction of the groups", **where, group="world_pg")
        last.close(self._patience_s)

    def _left_early(self, by: str = "") -> LocalProtocolError:
        at, leaves = f"at chunk {self.at.chunk_index}", "the block"
        at = at if self.at.chunk_index >= 0 else "before any chunk"
        if self._called is not None and not self._left_at:
            call, places = self._called
            still = {frame.f_code for frame, _ in traceback.walk_stack(None)}
            ended = [place for place in places if place[0] not in still] or places[:1]
            code, line = ended[-1]  # the block called it, and it may have called others
            self._left_at, call = f"{code.co_filename}:{line}", ended[-2][0].co_name if ended[1:] else call
            leaves = f"`{code.co_name}` after its `{call}` in line {line} and"
        check_first = (
            f"is {self._last_call} missing? or what leaves {leaves} before it: a `return`, a `break`?"
        )
        check_first = "why does it leave at that line?" if by else check_first
        return LocalProtocolError(
            f"The block was left{by} without {self._last_call}, {at}.", check_first=check_first
        )

    @property
    def at(self) -> Ids:
        """Ids of the action that the main thread is at; a lane may be further on."""
        return self._at

    @property
    def where(self) -> dict[str, Any]:
        """Rank and role, and on the mesh the chunk in hand: the facts for an error that is not ours."""
        return {"rank": self.groups.rank, "role": str(self.role)}

    def statistics(self) -> tuple[LaneStatistics, ...]:
        """Return how full each lane is."""
        return tuple(lane.statistics() for lane in self._lanes.values())

    def fail(self, error: BaseException) -> None:
        """Go to ERROR, write this rank's record, and tell the peers why: once, and within about 2 s.

        The record comes before the notices: when the first peer leaves, torchrun ends this rank, too. This
        never raises: its caller is already leaving. A peer without a notice sees the connection close.
        """
        if not self._failing.acquire(blocking=False):
            return  # the lock is never released: a rank fails once
        try:
            self._say_why(error)
        except Exception:
            log.exception("the peers were not told")

    def _say_why(self, error: BaseException) -> None:
        self.session.failed(error, self.at)
        if self._on_failure is not None:
            try:
                self._on_failure(error)
            except Exception:
                log.exception("on_failure raised; the peers are told all the same")
        self._stop_ahead()
        for name, message in notices(self.role, self.session.last_ids, error, self.where):
            try:
                # A fresh preflight: the link's own may hold a schema that never left.
                outgoing = Preflight(limits_of(self.plan), self.groups.device)(message)
                job = self._lanes[name].submit(partial(self._notify, name, outgoing))
                result_of(job, NOTICE_TIMEOUT_S, what="notice", group=name)
            except Exception as unsent:  # noqa: BLE001  the first error is the one to report
                log.info("notice.unsent group=%s %s", name, unsent)  # the peer may have left, with its news
        if self.device is not None:
            # Last: a failed device reports its error to the next caller, and may make that caller wait.
            with suppress(Exception):
                self.device.spans.poll()

    def _notify(self, name: str, outgoing: Outgoing) -> None:
        """Lane job: send a terminal notice on one of this role's links, which ``notices`` names."""
        self.links[name].send(outgoing)

    def _stop_ahead(self) -> None:
        """End the jobs that run ahead on the lanes, so that a notice can use the lanes, or they can stop."""

    @contextmanager
    def timed(self, name: str, which: WhichChunk, *, more: bool = False) -> Iterator[Timed]:
        """Record a step of a stage on a chunk: on the host, and on the device without waiting for it.

        Args:
            name: Name of the step, such as ``decode``.
            which: The chunk.
            more: Another entry follows at once; see ``Recorder.write``.
        """
        took, start_ns = Timed(), time.monotonic_ns()
        if self.watch is not None:
            self.watch.timed(name)
        ended = False
        try:
            with self.on_device(name, which) as took.on_device:
                yield took
            ended = True
        finally:
            self.recorder.add_span(name, start_ns, ids=which, more=more and ended)
        took.host_ns = time.monotonic_ns() - start_ns

    def on_device(self, name: str, which: WhichChunk) -> AbstractContextManager[DeviceSpan | None]:
        """Record the work that the body launches on the device, if there is one."""
        return nullcontext() if self.device is None else self.device.computing(name, which)

    @property
    def _patience_s(self) -> float:
        """Bound on waiting for a stuck lane; the lane's own bound passes first: it knows the cause."""
        return self.groups.timeout_s + 2.0

    def _one_caller(self, call: str) -> None:
        """Refuse a call by another thread; the first line of every public call that changes anything.

        Raises:
            LocalProtocolError: Another thread made the first call, and goes on undisturbed (rule R7, F22).
                Any thread may call ``fail``: the thread that finds the fault reports it.
        """
        thread = threading.current_thread()  # setdefault is atomic: of two at once, one is first
        caller = self._caller.setdefault("first", thread)
        if thread is not caller:
            raise LocalProtocolError(
                f"{call} was called by thread {thread.name!r}; thread {caller.name!r} made the first call, "
                "and a rank has one caller of the transport.",
                where={"rank": self.groups.rank, "role": str(self.role)},
                check_first="hand the work to the first thread, through a queue",
            )
        stack = traceback.walk_stack(sys._getframe(2))  # frames would keep what the loop has
        loops = ((f.f_code, line) for f, line in stack if not f.f_code.co_filename.startswith(RUNTIME))
        self._called = call, [*islice(loops, 4)]
        if self.watch is not None:
            self.watch.called(call)

    def _returned(self, message: PPEnvelope | PPResult | Ids | None, *, good: bool = True) -> None:
        """Report what a public call returns, at its end; the loop's last call reports nothing."""
        if self.watch is not None:
            self.watch.returned(message, good=good)

    def _goes_on(self, error: LocalProtocolError) -> None:
        """Say where a call was refused, and let the loop go on behind its guards, as before the call."""
        self._returned(None)
        error.at(**self.where)

    if not TYPE_CHECKING:  # mypy then reports another role's call as a missing attribute

        def __getattr__(self, name: str) -> object:
            """Refuse a call that only another role has, and name that role."""
            roles = [role for role, kind in self._kinds.items() if hasattr(kind, name)]
            if name.startswith("_") or not roles:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            raise WrongRoleError(
                f"{name} was called on the {self.role}; only {' and '.join(roles)} may.",
                where={"rank": self.groups.rank, "role": str(self.role)},
                check_first="is the plane a Stage0Plane or a MeshPlane here? docs/examples/own_loop.py asks",
            )

    def _commit(self, point: str, ids: Ids) -> None:
        if point not in COMMITMENT_POINTS:
            raise ValueError(f"{point!r} is not a commitment point")
        self.recorder.instant(point, ids=ids.where())
        log.debug("%s.started %s", point, ids)
        if self._hook is not None:
            self._hook(point, ids)

    def _send_out(self, name: str, span: str, outgoing: Outgoing) -> Future[None]:
        """Send a message of this role; the lane waits for it and, if chunks overlap, posts it.

        Posting copies the data for which the peer has posted receives. At depth 1 this thread has nothing
        else to do, and would only wait for the lane to wake, so it posts the message itself. At greater
        depths it has a stage to compute, and on CUDA it has NCCL operations to issue.
        """
        sending = Sending(self.links[name], outgoing)
        first = sending.post if self.plan.in_flight_depth == 1 and self.device is None else None
        return self._lanes[name].submit(partial(self._await_sent, name, span, sending), first=first)

    def _await_sent(self, name: str, span: str, sending: Sending) -> None:
        """Lane job: wait until a message has left, and record the time."""
        try:
            sending.wait()
        finally:
            # On a busy machine the lane may wake only after the main thread has posted the next message.
            start_ns, self._sent_ns[name] = max(sending.start_ns, self._sent_ns[name]), time.monotonic_ns()
            self.recorder.add_span(span, start_ns, end_ns=self._sent_ns[name], lane=name, ids=sending.which)

    def _refuse_notice(self, incoming: Incoming) -> None:
        if incoming.message.action is PPAction.ERROR and incoming.message.reason is not None:
            raise notice_of(incoming.message.reason, self.groups.rank, self.role)

    def _only_kind(self, incoming: Incoming, kind: type[Any]) -> Any:  # noqa: ANN401  the message, as that kind
        if not isinstance(incoming.message, kind):
            raise RemoteProtocolError(
                f"A {type(incoming.message).__name__} came where a {kind.__name__} belongs.",
                where=incoming.message.ids.where(),
                check_first="does anybody else use this group?",
            )
        return incoming.message
