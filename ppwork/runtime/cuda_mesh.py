"""The mesh's end on a GPU: which operations are issued on the device, by which thread and when.

Theory of operation: in NCCL's order.

- The main thread issues all NCCL operations. It must not sleep in ``_ready`` while a computed result is ready
  to leave, so the ``device`` lane waits for the kernels and puts the next step into ``_ready``.
- NCCL starts operations in the order in which the host issued them: a broadcast issued after the sums of
  chunk k cannot run beside chunk k. So the leader decides when a chunk begins, and says so in the one stream
  of frames that all mesh ranks read (rule R5): ``BEGIN`` follows the frames that came in time. At ``BEGIN``
  every mesh rank issues the broadcasts of these frames, and then the chunk's kernels. The leader sends
  ``BEGIN`` when the frame after the chunk's has come, or when the device has nothing else to compute:

      frames      k   k+1  BEGIN     k+2  BEGIN
      mesh rank            k, k+1, kernels of k    k+2, kernels of k+1
- The leader's ``mesh_pg`` lane broadcasts all frames, so that ``BEGIN`` keeps its place among them.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

import msgspec
import torch

from ppwork.errors import LocalProtocolError
from ppwork.protocol.envelope import Ids, PPAction, PPEnvelope, PPResult
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.topology import Role
from ppwork.runtime.cuda_links import CudaLinks
from ppwork.runtime.cuda_spans import DeviceSpan
from ppwork.runtime.groups import Groups
from ppwork.runtime.lanes import Lane, result_of
from ppwork.runtime.mesh import FollowerPlane, Item, LeaderPlane, MeshPlane, QueueMark
from ppwork.runtime.messages import Incoming, Outgoing
from ppwork.runtime.plane import Timed


class CudaMeshPlane(MeshPlane):
    """The end of a mesh rank on a GPU."""

    device: CudaLinks

    def __init__(self, plan: PipelinePlan, groups: Groups, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(plan, groups, *args, **kwargs)
        self._ahead: deque[Incoming] = deque()
        """Envelopes that were taken from the queue and not returned to the loop."""
        self._to_pass: deque[Incoming] = deque()
        """The envelopes of ``_ahead`` whose broadcast is not issued."""
        self._computing = False
        """Whether the device computes a result that has not been sent."""
        self._lanes["device"] = Lane("device", groups.device)

    def _arrive(self, incoming: Incoming) -> None:
        """Leader: issue the receives, from rank 0, of the CUDA tensors that a frame has announced."""

    def _pass(self, incoming: Incoming) -> None:
        """Issue the broadcast of these tensors."""
        raise NotImplementedError

    def _ask_to_begin(self) -> bool:
        """Begin the next chunk if it is time, and return whether it was; only the leader decides."""
        return False

    def _next_envelope(self) -> PPEnvelope:
        # Only now, when the loop gets the envelope: all later launches wait for this chunk's tensors.
        envelope: PPEnvelope = self.device.complete(self._inbound, self._next_to_launch())
        return envelope

    def _next_to_launch(self) -> Incoming:
        """Return the next envelope; a chunk only after it has begun and no result is left to send.

        If the chunk's kernels were launched first, the result would have to wait for their sums.
        """
        begun = asked = False
        while True:
            if self._ahead:
                if self._ahead[0].message.action is not PPAction.INFER:
                    return self._ahead.popleft()
                if begun and not self._computing:
                    return self._ahead.popleft()
                asked = asked or self._ask_to_begin()
            item = self._next_item()
            if isinstance(item, Incoming):
                self._arrive(item)
                self._ahead.append(item)
                self._to_pass.append(item)
            elif isinstance(item, QueueMark):
                begun = True
                while self._to_pass:
                    self._pass(self._to_pass.popleft())
            else:
                item()

    def _awaited(self) -> tuple[str, str, str]:
        if self._computing:
            check = "does a sum of stage 1 wait for another mesh rank? its log; else raise timeout_s"
            return "The device did not finish a chunk", "tp_pg", check
        if self._ahead:
            return "The mesh did not begin a chunk", "mesh_pg", "the leader's log: does its device compute?"
        return super()._awaited()


class CudaLeaderPlane(CudaMeshPlane, LeaderPlane, role=Role.LEADER, on_cuda=True):
    """The leader's end on a GPU."""

    def __init__(self, plan: PipelinePlan, groups: Groups, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(plan, groups, *args, **kwargs)
        self._begun: deque[DeviceSpan] = deque()
        """Chunks that a user's own loop has, each from where the device begins it."""

    def receive(self) -> PPEnvelope:
        """Return the next envelope; see ``MeshPlane.receive``."""
        envelope = super().receive()
        if envelope.action is PPAction.INFER and self.watch is not None:
            self._begun.append(self.device.begin("generate", envelope.ids.where()))
        return envelope

    def _own(self, incoming: Incoming) -> None:
        super()._own(incoming)
        self.device.reserve("down_pg", incoming)

    def _arrive(self, incoming: Incoming) -> None:
        self.device.receive("down_pg", incoming, self._down.issue)

    def _pass(self, incoming: Incoming) -> None:
        if self.plan.mesh_size > 1:
            self.device.pass_on(incoming, self._mesh.issue)

    def _ask_to_begin(self) -> bool:
        # If d_in is 2, the next chunk leaves rank 0 only after the result before this one: never in time.
        enough = min(2, self.plan.bounds[0] - 1)
        if self._computing and len(self._ahead) < enough:
            return False
        try:
            self._arrived.put(QueueMark.BEGIN, timeout=0.0)
        except queue.Full:
            return False  # an item is then on its way to the main thread, which asks again after it
        return True

    def _hand_on(self, item: Item) -> None:
        self._put(self._arrived, item)

    def _end(self, error: BaseException) -> None:
        self._arrived.put_last(error)

    def _send_when_computed(self, result: PPResult, took: Timed | None) -> None:
        if result.action is not PPAction.INFER:
            self._send(result)
            return
        begun = self._begun.popleft() if self._begun else None
        if took is None and begun is not None:  # the loop's time on the host is that of the launches
            begun.end.record(torch.cuda.current_stream())
            took = Timed(result.stage1_ns, begun)
        span = None if took is None else took.on_device
        end = self.device.launched() if span is None else span.end
        self._computing = True
        then = partial(self._send_computed, result, took)
        self._lanes["device"].submit(partial(self._await_device, end, then))

    def _await_device(self, end: torch.cuda.Event, then: Callable[[], None]) -> None:
        """Lane job: wait for the device on this thread, so that the main thread stays free to issue."""
        try:
            end.synchronize()
            self._put(self._ready, then)
        except BaseException as error:  # noqa: BLE001
            self._ready.put_last(error)

    def _send_computed(self, result: PPResult, took: Timed | None) -> None:
        self._computing = False
        if took is not None and took.on_device is not None:
            # NCCL counts an operation's time from its launch on the host: a sum launched while the device
            # computes the previous chunk waits for both chunks.
            stage1_ns = took.on_device.ns
            longest_s = min(2, self.plan.in_flight_depth) * (stage1_ns - took.host_ns) / 1e9
            if longest_s > self.groups.timeout_s:
                depth, timeout_s = self.plan.in_flight_depth, self.groups.timeout_s
                raise LocalProtocolError(
                    f"The device took {stage1_ns / 1e9:.1f} s for a chunk. At depth {depth} NCCL waits up to "
                    f"{longest_s:.1f} s for an operation, and timeout_s is {timeout_s:g}.",
                    where={"group": "tp_pg", **result.ids.where()},
                    check_first=f"timeout_s (--timeout-s) above {longest_s:.0f}, or fewer denoise steps",
                )
            result = msgspec.structs.replace(result, stage1_ns=stage1_ns)
        self._send(result)
        # The next result waits on this lane until rank 0 has taken this one; envelopes come in meanwhile.
        # Rank 0 takes it after its sends, so a chunk launched before their receives might deadlock.
        self._lanes["device"].submit(self.device.launched("up_pg").synchronize)

    def _send_out(self, name: str, span: str, outgoing: Outgoing) -> Future[None]:
        sent = super()._send_out(name, span, outgoing)
        self.device.send(name, outgoing, self._up.issue)
        return sent


class CudaFollowerPlane(CudaMeshPlane, FollowerPlane, role=Role.FOLLOWER, on_cuda=True):
    """A follower's end on a GPU."""

    def __init__(self, plan: PipelinePlan, groups: Groups, *args: Any, **kwargs: Any) -> None:  # noqa: ANN401
        super().__init__(plan, groups, *args, **kwargs)
        self._launched: deque[Future[None]] = deque()

    def computed(self, observed_calls: int) -> Ids:
        """Check as ``MeshPlane.computed``, and let the device lane wait for what was launched."""
        ids = super().computed(observed_calls)
        self._launched.append(self._lanes["device"].submit(self.device.launched().synchronize))
        return ids

    def _next_to_launch(self) -> Incoming:
        # NCCL counts an operation's time from its launch: launch at most one chunk ahead of the device.
        while len(self._launched) > 1:
            result_of(self._launched.popleft(), self._patience_s, what="chunk on the device", group="tp_pg")
        return super()._next_to_launch()

    def _pass(self, incoming: Incoming) -> None:
        self.device.reserve("mesh_pg", incoming)
        self.device.receive("mesh_pg", incoming, self._mesh.issue)
