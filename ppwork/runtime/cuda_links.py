"""Transport on CUDA: a stream per link, a ring of byte buffers, and the edges that order them (rule R8).

Compute tensors never travel. Each message is packed into one *slot* of its link, one transfer whatever the
number of tensors, and a slot has two events. The writer waits for ``empty`` and records ``full``; the reader
waits for ``full`` and records ``empty``:

    sending     compute copies in      -> link's stream sends
    receiving   link's stream receives -> (mesh's stream passes on) -> compute copies out

Every call is made by the rank's main thread, in program order (rule R7), and none blocks the host. What moves
the bytes is the caller's: called under the link's stream, it must leave that stream behind the transfer.

On CUDA a message is split: its frame and its CPU tensors go over gloo on the lanes, as without a GPU, and its
CUDA tensors over NCCL, issued here. An operation is issued only when the frame that announces it has come, so
its peer has issued its end or is about to.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch

from ppwork.protocol.envelope import TensorSpec
from ppwork.records.spans import DEVICE_LANE, Recorder, WhichChunk
from ppwork.runtime.cuda_spans import CudaSpans, DeviceSpan
from ppwork.runtime.groups import Groups
from ppwork.runtime.messages import Incoming, Outgoing
from ppwork.runtime.tensors import from_bytes

Issue = Callable[[torch.Tensor], None]
"""Puts one transfer of a uint8 CUDA tensor on the current stream, and the stream behind it."""
ALIGN = 256
"""Bytes; where a part may begin in a slot, aligned as a tensor of its own would be."""


class Edge(StrEnum):
    """The waits of one stream for another; each has a test that shows the harm when it is left out."""

    REFILL = "refill"
    """Compute fills a slot again only when its last message has been sent."""
    SEND = "send"
    """The link's stream sends a slot only when compute has filled it."""
    REUSE = "reuse"
    """The link's stream receives into a slot again only when its last message was copied out."""
    RELAY = "relay"
    """The mesh's stream broadcasts a slot only when the down link's stream has received it."""
    TAKE = "take"
    """Compute copies a slot out only when it has been received, and passed on where it is."""


def places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Place parts of these sizes one after another, aligned; both ends compute the same.

    Args:
        sizes: Bytes of each part; may be 0.

    Returns:
        The offset of each part, and the bytes of the whole, in bytes.
    """
    offsets, end = [], 0
    for size in sizes:
        offsets.append(-(-end // ALIGN) * ALIGN if size else end)
        end = offsets[-1] + size
    return offsets, end


def copy_in(buffer: torch.Tensor, parts: Sequence[torch.Tensor]) -> None:
    """Copy flat uint8 parts to their places in a flat uint8 buffer, on the current stream."""
    offsets, _ = places([part.numel() for part in parts])
    for part, offset in zip(parts, offsets, strict=True):
        buffer[offset : offset + part.numel()].copy_(part)


def copy_out(buffer: torch.Tensor, specs: Sequence[TensorSpec]) -> dict[str, torch.Tensor]:
    """Copy the tensors of a message out of a flat uint8 buffer, on the current stream; none aliases it."""
    offsets, _ = places([spec.nbytes for spec in specs])
    return {
        spec.name: from_bytes(buffer[offset : offset + spec.nbytes].clone(), spec)
        for spec, offset in zip(specs, offsets, strict=True)
    }


class Slot:
    """One buffer of a ring, and the two events that order its use."""

    def __init__(self, device: torch.device) -> None:
        self.buffer = torch.empty(0, dtype=torch.uint8, device=device)
        # A wait for an event that was never recorded does nothing: a new slot is empty.
        self.full = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.empty = torch.cuda.Event()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class DeviceArrival:
    """A message on its way into a slot; it must be taken before its ring comes round to the slot again."""

    slot: Slot
    specs: Sequence[TensorSpec]

    @property
    def raw(self) -> torch.Tensor:
        """The message's bytes in the slot: ``[nbytes]`` uint8."""
        return self.slot.buffer[: places([spec.nbytes for spec in self.specs])[1]]


class CudaLink:
    """One direction of traffic on this rank: a stream and a ring of slots.

    Args:
        name: The group that it serves; its spans are in the lane ``cuda:<name>``.
        device: This rank's CUDA device.
        slots: Length of the ring: ``in_flight_depth`` + 1, so that a slot in use never holds up the next.
        spans: Where the time on the device is recorded.
        without: Edges to leave out. For the tests that show what each is for; nothing else.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        *,
        slots: int,
        spans: CudaSpans,
        without: frozenset[Edge] = frozenset(),
    ) -> None:
        self.name = name
        # Ahead of compute kernels that have not begun: a transfer needs little of the device.
        self.stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]
        self._device = device
        self._ring = itertools.cycle([Slot(device) for _ in range(slots)])
        self._spans = spans
        self._without = without

    def send(self, parts: Sequence[torch.Tensor], issue: Issue, ids: WhichChunk | None = None) -> None:
        """Send a message; its tensors may be written to again by later work on the current stream.

        Args:
            parts: Its CUDA tensors as flat uint8, past preflight, in declared order.
            issue: Starts the send; not called when there are no bytes.
            ids: The chunk, for the span.
        """
        _, nbytes = places([part.numel() for part in parts])
        compute = torch.cuda.current_stream(self._device)
        slot = self._writable(nbytes, compute, Edge.REFILL)
        copy_in(slot.buffer, parts)
        slot.full.record(compute)
        self._wait(self.stream, slot.full, Edge.SEND)
        self._issue("send", slot.buffer[:nbytes], issue, ids)
        slot.empty.record(self.stream)

    def receive(
        self, specs: Sequence[TensorSpec], issue: Issue, ids: WhichChunk | None = None
    ) -> DeviceArrival:
        """Begin to receive a message; hand the arrival to ``take``, once, in the order of arrivals.

        Args:
            specs: Of its CUDA tensors, in declared order, checked against the limits.
            issue: Starts the receive, or the broadcast at a follower; not called when there are no bytes.
            ids: The chunk, for the span.
        """
        _, nbytes = places([spec.nbytes for spec in specs])
        arrival = DeviceArrival(self._writable(nbytes, self.stream, Edge.REUSE), specs)
        self._issue("receive", arrival.raw, issue, ids)
        arrival.slot.full.record(self.stream)
        return arrival

    def pass_on(self, arrival: DeviceArrival, issue: Issue, ids: WhichChunk | None = None) -> None:
        """Broadcast what another link receives, from its slot, without a copy; the leader's mesh link.

        Args:
            arrival: Of the down link, not taken yet.
            issue: Starts the broadcast; not called when there are no bytes.
            ids: The chunk, for the span.
        """
        self._wait(self.stream, arrival.slot.full, Edge.RELAY)
        self._issue("broadcast", arrival.raw, issue, ids)
        # Full now means passed on, too: compute gives the slot back, and the broadcast still reads it.
        arrival.slot.full.record(self.stream)

    def take(self, arrival: DeviceArrival) -> dict[str, torch.Tensor]:
        """Return the message's tensors by name, fresh ones on the current stream, and give the slot back.

        Call it when they are needed and not before: whatever follows on the current stream waits for them.
        """
        compute = torch.cuda.current_stream(self._device)
        self._wait(compute, arrival.slot.full, Edge.TAKE)
        tensors = copy_out(arrival.raw, arrival.specs)
        arrival.slot.empty.record(compute)
        return tensors

    def _writable(self, nbytes: int, writer: torch.cuda.Stream, edge: Edge) -> Slot:
        """Return the next slot, with room for ``nbytes``, once ``writer`` is behind its last use."""
        slot = next(self._ring)
        self._wait(writer, slot.empty, edge)
        if slot.buffer.numel() < nbytes:
            # The allocator hands memory out again in the order of the stream that it came from. The old
            # buffer may go once the writer, which has just been put behind its last use, has come to here.
            slot.buffer.record_stream(writer)
            with torch.cuda.stream(writer):
                slot.buffer = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        return slot

    def _issue(self, what: str, raw: torch.Tensor, issue: Issue, ids: WhichChunk | None) -> None:
        if raw.numel() == 0:
            return  # both ends know it from the specs
        what = "send_result" if (what, self.name) == ("send", "up_pg") else what
        span = self._spans.span(what, lane=f"cuda:{self.name}", stream=self.stream, ids=ids)
        with torch.cuda.stream(self.stream), span:
            issue(raw)

    def _wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event, edge: Edge) -> None:
        if edge not in self._without:
            stream.wait_event(event)


class CudaLinks:
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
            name: CudaLink(name, groups.device, slots=depth + 1, spans=self.spans)
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

    def computing(self, name: str, which: WhichChunk) -> AbstractContextManager[DeviceSpan]:
        """Record the time that the body's kernels take on the device."""
        return self.spans.span(name, lane=DEVICE_LANE, ids=which)
