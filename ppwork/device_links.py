"""The CUDA side of one rank's links: which stream carries what, issued by the main thread (rule R7).

On CUDA a message is split: its frame and its CPU tensors go over gloo on the lanes, as without a GPU, and its
CUDA tensors over NCCL, issued here in program order. An operation is issued only when the frame that
announces it has come, so its peer has issued its end or is about to.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ppwork.cuda_spans import CudaSpans
from ppwork.streams import DeviceArrival, DeviceLink
from ppwork.timeline import DEVICE_LANE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ppwork.cuda_spans import DeviceSpan
    from ppwork.envelope import Ids
    from ppwork.groups import Groups
    from ppwork.streams import Issue
    from ppwork.timeline import Recorder
    from ppwork.transport import Incoming, Outgoing


class DeviceLinks:
    """This rank's transport streams; made and used by the main thread only.

    Args:
        groups: On a CUDA device.
        recorder: Gets the spans of the device.
        depth: ``in_flight_depth``.

    Blocks:
        Until the device is idle: its clock is set against the host's.
    """

    def __init__(self, groups: Groups, recorder: Recorder, depth: int) -> None:
        self.spans = CudaSpans(recorder.write, groups.device)
        self._links = {
            name: DeviceLink(name, groups.device, slots=depth + 1, spans=self.spans)
            for name in groups.topology.links(groups.rank)
        }

    def send(self, name: str, outgoing: Outgoing, issue: Issue) -> None:
        """Put the CUDA tensors of a message on their way."""
        self._links[name].send(outgoing.on_device, issue, outgoing.message.ids.where())
        self.spans.poll()

    def receive(self, name: str, incoming: Incoming, issue: Issue) -> DeviceArrival:
        """Begin to receive the CUDA tensors that a frame has announced."""
        return self._links[name].receive(incoming.on_device, issue, incoming.message.ids.where())

    def pass_on(self, arrival: DeviceArrival, incoming: Incoming, issue: Issue) -> None:
        """Broadcast to the mesh what the leader receives."""
        self._links["mesh_pg"].pass_on(arrival, issue, incoming.message.ids.where())

    def complete(self, name: str, incoming: Incoming, arrival: DeviceArrival) -> Any:  # noqa: ANN401
        """Return the message with its CUDA tensors; whatever is launched next waits for them."""
        return incoming.with_device(self._links[name].take(arrival))

    @contextmanager
    def computing(self, name: str, ids: Ids) -> Iterator[DeviceSpan]:
        """Record the time that the body's kernels take on the device."""
        with self.spans.span(name, lane=DEVICE_LANE, ids=ids.where()) as span:
            yield span
