"""What waits for the main thread of a mesh rank: envelopes that have come, and chunks that a device computed.

Without a GPU this is a queue. On CUDA the main thread is the only one that issues NCCL operations (rule R7),
so it must not sleep in the queue while a computed result wants to leave.
"""

from __future__ import annotations

import queue
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from ppwork.errors import PeerTimeoutError
from ppwork.lanes import Lane, WatchedQueue
from ppwork.plane import Plane
from ppwork.topology import Role
from ppwork.transport import Incoming

if TYPE_CHECKING:
    from ppwork.cuda_spans import DeviceSpan
    from ppwork.device_links import DeviceLinks
    from ppwork.envelope import PPResult
    from ppwork.streams import DeviceArrival, Issue


@dataclass(frozen=True)
class Computed:
    """A chunk whose kernels have ended on the device."""

    result: PPResult
    span: DeviceSpan


Item = Incoming | Computed | BaseException
"""What waits for the main thread."""


class MeshInbox(Plane):
    """The queue between a mesh rank's lanes and its main thread."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401  as ``Plane``
        super().__init__(*args, **kwargs)
        # One for the SHUTDOWN behind the last chunk, one for a chunk computed on the device.
        self._ready: WatchedQueue[Item] = WatchedQueue(self.plan.in_flight_depth + 2)
        self._frames: deque[Incoming] = deque()
        self._computing = False
        self._issue_down: Issue
        self._issue_mesh: Issue
        if self.device is not None and self.role is Role.LEADER:
            self._lanes["device"] = Lane("device", self.groups.device)

    def _send_result(self, result: PPResult) -> None:
        raise NotImplementedError

    def _next_incoming(self) -> tuple[Incoming, DeviceArrival | None]:
        """Return the next envelope; on CUDA with its transfers issued, and every earlier result sent.

        One envelope is received ahead of computing, always the next one, and its broadcast is issued between
        the kernels of two chunks: so ``mesh_pg`` and ``tp_pg`` are used in one order on every mesh rank
        (rule R7). A result is sent before the next chunk's kernels are launched: NCCL starts operations in
        the order in which the host issued them, and the result would start behind that chunk's sums.
        """
        if self.device is None:
            return _envelope(_next(self._ready, self._patience)), None
        landed: DeviceArrival | None = None
        while landed is None or self._computing:
            if landed is None and self._frames:
                incoming = self._frames.popleft()
                landed = self._land(self.device, incoming)
                continue
            item = _next(self._ready, self._patience)
            if isinstance(item, Computed):
                self._computing = False
                self._send_result(msgspec.structs.replace(item.result, stage1_ns=item.span.ns))
            else:
                self._refuse_notice(_envelope(item))
                self._frames.append(_envelope(item))
        return incoming, landed

    def _land(self, device: DeviceLinks, incoming: Incoming) -> DeviceArrival:
        if self.role is Role.FOLLOWER:
            return device.receive("mesh_pg", incoming, self._issue_mesh)
        arrival = device.receive("down_pg", incoming, self._issue_down)
        device.pass_on(arrival, incoming, self._issue_mesh)
        return arrival

    def _await_device(self, computed: Computed) -> None:
        """Lane job: wait on this thread for the device, so that the main thread stays free to issue."""
        try:
            computed.span.wait()
            self._ready.put(computed, timeout=self._patience)
        except BaseException as error:  # noqa: BLE001  it belongs to the main thread
            self._ready.put(error, timeout=self._patience)


def _next(source: queue.Queue[Item], timeout_s: float) -> Incoming | Computed:
    try:
        item = source.get(timeout=timeout_s)
    except queue.Empty:
        raise PeerTimeoutError(
            f"No envelope came within {timeout_s:g} s.",
            where={"group": "mesh_pg"},
            check_first="is rank 0 alive and what was its last commitment point? its log says",
        ) from None
    if isinstance(item, BaseException):
        raise item
    return item


def _envelope(item: Incoming | Computed) -> Incoming:
    assert not isinstance(item, Computed), "without a GPU nothing is computed beside the main thread"  # noqa: S101
    return item
