"""What the control plane has on every rank: session, lanes, commitment points, the way out.

``stage0_end`` and ``mesh_end`` add what each side does; ``control_plane`` puts them together.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ppwork.device_links import DeviceLinks
from ppwork.envelope import Ids, PPAction
from ppwork.errors import LocalProtocolError, RemoteProtocolError
from ppwork.lanes import Lane, LaneStatistics, result_of
from ppwork.links import Sender
from ppwork.notices import notice_of, notices
from ppwork.protocol import COMMITMENT_POINTS, Session
from ppwork.transport import Incoming, Preflight, limits_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ppwork.cuda_spans import DeviceSpan
    from ppwork.groups import Groups
    from ppwork.plan import Plan
    from ppwork.timeline import Recorder
    from ppwork.topology import Role
    from ppwork.transport import Outgoing

log = logging.getLogger(__name__)

NOTICE_TIMEOUT_S = 1.0
"""How long a failing rank tries to tell each peer before it leaves anyway: crash beats hang."""

Hook = Callable[[str, Ids], None]
"""Called just before each of ``protocol.COMMITMENT_POINTS``; may raise, for those who break things."""


@dataclass
class Timed:
    """How long a step took, once it is over."""

    host_ns: int = 0
    on_device: DeviceSpan | None = None


class Plane:
    """The part of ``PPControlPlane`` that all roles share."""

    def __init__(self, plan: Plan, groups: Groups, recorder: Recorder, hook: Hook | None = None) -> None:
        self.plan = plan
        self.groups = groups
        self.recorder = recorder
        self.session = Session(groups.rank, groups.role, plan.in_flight_depth)
        self._session_lock = threading.Lock()
        self._hook = hook
        # Every chunk in flight can have a job here, and so can one NOOP, SHUTDOWN or notice besides.
        bound = plan.in_flight_depth + 2
        self._lanes = {
            name: Lane(name, groups.device, bound=bound) for name in groups.topology.links(groups.rank)
        }
        self._preflight = Preflight(limits_of(plan), groups.device)
        on_cuda = groups.device.type == "cuda"
        self.device = DeviceLinks(groups, recorder, plan.in_flight_depth) if on_cuda else None
        """The CUDA side of the links; ``None`` without a GPU."""
        self._told = False
        self._caller: dict[str, threading.Thread] = {}
        self.session.joined()

    @property
    def role(self) -> Role:
        """What this rank does."""
        return self.groups.role

    def statistics(self) -> tuple[LaneStatistics, ...]:
        """Return how full each lane is."""
        return tuple(lane.statistics() for lane in self._lanes.values())

    def fail(self, error: BaseException) -> None:
        """Go to ERROR and tell the peers why, once and within about 2 s; then leave.

        Never raises: whoever calls it is on the way out, and what it could not say, the closed connection
        will.
        """
        self.session.failed(error)
        if self._told:
            return
        self._told = True
        self._stop_ahead()
        for name, message in notices(self.role, self.session.last_ids, error):
            try:
                # A fresh preflight: the link's own may hold a schema that never left.
                outgoing = Preflight(limits_of(self.plan), self.groups.device)(message)
                job = self._lanes[name].submit(partial(self._notify, name, outgoing))
                result_of(job, NOTICE_TIMEOUT_S, what="notice", group=name)
            except Exception as unsent:  # noqa: BLE001  the first error is the one to report
                log.warning("notice.unsent group=%s %s", name, unsent)

    def _notify(self, name: str, outgoing: Outgoing) -> None:
        """Lane job: send a terminal notice on one of this role's links."""
        Sender(self.groups, name).send(outgoing)

    def _stop_ahead(self) -> None:
        """End whatever runs ahead on the lanes, so that a notice can use them."""

    @contextmanager
    def timed(self, name: str, ids: Ids) -> Iterator[Timed]:
        """Record what a stage does with a chunk: on the host, and on the device without waiting for it."""
        took, start_ns = Timed(), time.monotonic_ns()
        with self.recorder.span(name, ids=ids.where()), self.on_device(name, ids) as took.on_device:
            yield took
        took.host_ns = time.monotonic_ns() - start_ns

    def on_device(self, name: str, ids: Ids) -> AbstractContextManager[DeviceSpan | None]:
        """Record what the body launches on the device; without one, nothing."""
        return nullcontext() if self.device is None else self.device.computing(name, ids)

    def _leave(self) -> None:
        if self.device is not None:
            self.device.spans.flush()
        for lane in self._lanes.values():
            lane.close(NOTICE_TIMEOUT_S)
        self.groups.close()

    @property
    def _patience(self) -> float:
        """The lane's own bound comes first, because it knows the cause; this one is for a stuck lane."""
        return self.groups.timeout_s + 2.0

    def _only(self, what: str, *roles: Role) -> None:
        """Refuse a call of another role or thread; the first line of every public call that changes a thing.

        Raises:
            LocalProtocolError: This role never makes the call; or another thread made the first one, and goes
                on undisturbed (rule R7, F22). ``fail`` is open to all: whoever finds the fault may say so.
        """
        thread = threading.current_thread()
        caller = self._caller.setdefault("first", thread)  # atomic: of two at once, one is the first
        if thread is not caller:
            raise LocalProtocolError(
                f"{what} was called by thread {thread.name!r}; thread {caller.name!r} made the first call, "
                "and a rank has one caller of the transport.",
                where={"rank": self.groups.rank, "role": str(self.role)},
                check_first="hand the work to the first thread, through a queue",
            )
        if self.role not in roles:
            raise LocalProtocolError(
                f"{what} was called on the {self.role}; only {' and '.join(roles)} may.",
                where={"rank": self.groups.rank, "role": str(self.role)},
                check_first="the role loops in ppwork/control.py show who calls what",
            )

    def _commit(self, point: str, ids: Ids) -> None:
        if point not in COMMITMENT_POINTS:
            raise ValueError(f"{point!r} is not a commitment point")
        self.recorder.instant(point, ids=ids.where())
        log.debug("%s.started %s", point, ids)
        if self._hook is not None:
            self._hook(point, ids)

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
