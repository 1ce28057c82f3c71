"""Transport on CUDA: a stream per link, a ring of byte buffers, and the edges that order them (rule R8).

Compute tensors never travel. Each message is packed into one *slot* of its link, and takes one transfer
whatever the number of tensors. A slot has two events: the writer waits for ``empty`` and records ``full``,
and the reader waits for ``full`` and records ``empty``:

    sending     compute copies in      -> link's stream sends
    receiving   link's stream receives -> (mesh's stream passes on) -> compute copies out

A message has its slot before its commitment point (rule R1): ``fill`` is the last part of its preflight, and
the leader reserves a slot before the mesh hears of the chunk. So if memory runs out, no peer waits yet.

The rank's main thread issues every operation, in program order (rule R7), and no operation blocks the host.
Only ``reserve`` may be called on a lane. The caller's ``issue`` starts the transfer: it runs under the link's
stream, and must make that stream wait for the transfer.

On CUDA a message is split: its frame and its CPU tensors go over gloo on the lanes, as without a GPU, and its
CUDA tensors over NCCL, issued here. An operation is issued only after the frame that announces it has come,
so the peer has issued its end or is about to.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import Any

import torch

from ppwork.errors import LocalProtocolError
from ppwork.protocol.envelope import TensorSpec
from ppwork.records.spans import DEVICE_LANE, Recorder, WhichChunk
from ppwork.runtime.cuda_spans import CudaSpans, DeviceSpan
from ppwork.runtime.groups import Groups
from ppwork.runtime.messages import Incoming, Outgoing
from ppwork.runtime.slots import InSlot, Slot, copy_in, copy_out, places

Issue = Callable[[torch.Tensor], None]
"""Puts one transfer of a uint8 CUDA tensor on the current stream, and makes that stream wait for it."""


class StreamWait(StrEnum):
    """The waits of one stream for another; for each, a test shows the harm when the wait is left out."""

    REFILL = "refill"
    """Compute fills a slot again only after the slot's last message has been sent."""
    SEND = "send"
    """The link's stream sends a slot only after compute has filled it."""
    REUSE = "reuse"
    """The link's stream receives into a slot again only after the slot's last message was copied out."""
    RELAY = "relay"
    """The mesh's stream broadcasts a slot only after the down link's stream has received it."""
    TAKE = "take"
    """Compute copies a slot out only after it has been received and, on the leader, passed on."""


class CudaLink:
    """One direction of traffic on this rank: a stream and a ring of slots.

    Args:
        name: The group that this link serves; its spans are in the lane ``cuda:<name>``.
        device: This rank's CUDA device.
        slots: Length of the ring: ``in_flight_depth`` + 1, so that a slot in use never delays a message.
        spans: Records the time on the device.
        without: Edges to leave out; only for the tests that show what each edge is for.
    """

    def __init__(
        self,
        name: str,
        device: torch.device,
        *,
        slots: int,
        spans: CudaSpans,
        without: frozenset[StreamWait] = frozenset(),
    ) -> None:
        self.name = name
        # This stream only waits: NCCL moves the bytes on its own stream, whose priority torch has chosen.
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._device = device
        self._slots = [Slot(device) for _ in range(slots)]
        self._ring = itertools.cycle(self._slots)
        self._spans = spans
        self._without = without

    def fill(self, parts: Sequence[torch.Tensor]) -> InSlot:
        """Copy a message into a slot; later work on the current stream may overwrite the message's tensors.

        Args:
            parts: The message's CUDA tensors as flat uint8, checked, in declared order.

        Returns:
            The argument of ``send``; a message that never leaves does not keep its slot occupied.

        Raises:
            LocalProtocolError: The device has no room for the slot (the sending rank; no byte has left).
        """
        _, nbytes = places([part.numel() for part in parts])
        compute = torch.cuda.current_stream(self._device)
        slot = self._writable(nbytes, compute, StreamWait.REFILL)
        copy_in(slot.buffer, parts)
        slot.full.record(compute)
        return InSlot(slot, slot.buffer[:nbytes])

    def send(self, filled: InSlot, issue: Issue, ids: WhichChunk | None = None) -> None:
        """Send a message that ``fill`` returned.

        Args:
            filled: The messages, in the order of the fills.
            issue: Starts the send; not called when there are no bytes.
            ids: The chunk, for the span.
        """
        self._wait(self.stream, filled.slot.full, StreamWait.SEND)
        self._issue("send", filled.raw, issue, ids)
        filled.slot.empty.record(self.stream)

    def reserve(self, specs: Sequence[TensorSpec]) -> InSlot:
        """Return the place of a coming message; call ``receive`` and then ``take``, once each, in order.

        Args:
            specs: Specs of the message's CUDA tensors, in declared order, checked against the limits.

        Raises:
            LocalProtocolError: The device has no room for the slot, or every slot holds a message that was
                not taken (this rank; nothing was issued).
        """
        _, nbytes = places([spec.nbytes for spec in specs])
        slot = self._writable(nbytes, self.stream, StreamWait.REUSE)
        slot.lent = True
        return InSlot(slot, slot.buffer[:nbytes], specs)

    def receive(self, arrival: InSlot, issue: Issue, ids: WhichChunk | None = None) -> None:
        """Begin to receive a message.

        Args:
            arrival: From ``reserve``.
            issue: Starts the receive, or the broadcast at a follower; not called when there are no bytes.
            ids: The chunk, for the span.
        """
        self._issue("receive", arrival.raw, issue, ids)
        arrival.slot.full.record(self.stream)

    def pass_on(self, arrival: InSlot, issue: Issue, ids: WhichChunk | None = None) -> None:
        """Broadcast a message from the slot into which another link receives it, without a copy (leader).

        Args:
            arrival: Place of the message in the down link's ring, not taken yet.
            issue: Starts the broadcast; not called when there are no bytes.
            ids: The chunk, for the span.
        """
        self._wait(self.stream, arrival.slot.full, StreamWait.RELAY)
        self._issue("broadcast", arrival.raw, issue, ids)
        # ``full`` now also means "passed on": compute must not give back a slot that the broadcast reads.
        arrival.slot.full.record(self.stream)

    def take(self, arrival: InSlot) -> dict[str, torch.Tensor]:
        """Return the message's tensors by name, as new tensors on the current stream; give the slot back.

        Call this only when they are needed: all later work on the current stream waits for them.
        """
        compute = torch.cuda.current_stream(self._device)
        self._wait(compute, arrival.slot.full, StreamWait.TAKE)
        tensors = copy_out(arrival.raw, arrival.specs)
        arrival.slot.empty.record(compute)
        arrival.slot.lent = False
        return tensors

    def _writable(self, nbytes: int, writer: torch.cuda.Stream, edge: StreamWait) -> Slot:
        """Return the next slot, with room for ``nbytes``, after making ``writer`` wait for its last use."""
        slot = next(self._ring)
        if slot.lent:
            raise LocalProtocolError(
                f"{len(self._slots)} messages had come over {self.name}, and none of them was taken.",
                where={"group": self.name},
                check_first="more chunks in flight than in_flight_depth, or a message that nobody completed",
            )
        self._wait(writer, slot.empty, edge)
        if slot.buffer.numel() < nbytes:
            # Grow all slots of a new ring at once: an allocation may wait for the device, and later that
            # would include NCCL's kernels.
            is_new = not any(one.buffer.numel() for one in self._slots)
            for one in self._slots if is_new else [slot]:
                self._grow(one, nbytes, writer)
        return slot

    def _grow(self, slot: Slot, nbytes: int, writer: torch.cuda.Stream) -> None:
        # The allocator reuses memory in the order of the stream that it was allocated on. The old buffer may
        # be freed once the writer, which now waits for the buffer's last use, has reached this point.
        slot.buffer.record_stream(writer)
        try:
            # Not an inference tensor, whatever the caller's mode: code outside that mode writes to it, too.
            with torch.cuda.stream(writer), torch.inference_mode(False):
                slot.buffer = torch.empty(nbytes, dtype=torch.uint8, device=self._device)
        except torch.OutOfMemoryError as error:
            raise LocalProtocolError(
                f"The device had no room for {nbytes} bytes, one of {len(self._slots)} slots of {self.name}.",
                where={"group": self.name},
                check_first="nvidia-smi: who has the memory? a smaller in_flight_depth needs fewer slots",
            ) from error

    def _issue(self, what: str, raw: torch.Tensor, issue: Issue, ids: WhichChunk | None) -> None:
        if raw.numel() == 0:
            return  # both ends know from the specs that there are no bytes
        what = "send_result" if (what, self.name) == ("send", "up_pg") else what
        span = self._spans.span(what, lane=f"cuda:{self.name}", stream=self.stream, ids=ids)
        with torch.cuda.stream(self.stream), span:
            issue(raw)

    def _wait(self, stream: torch.cuda.Stream, event: torch.cuda.Event, edge: StreamWait) -> None:
        if edge not in self._without:
            stream.wait_event(event)


class CudaLinks:
    """This rank's transport streams; only the main thread uses them, except for ``reserve``.

    Args:
        groups: This rank's groups, on a CUDA device.
        recorder: Gets the spans of the device.
        depth: ``in_flight_depth``.

    Blocks:
        Until the device is idle: the spans' clock is calibrated against the host's.
    """

    def __init__(self, groups: Groups, recorder: Recorder, depth: int) -> None:
        self.spans = CudaSpans(recorder.write, groups.device)
        self._links = {
            name: CudaLink(name, groups.device, slots=depth + 1, spans=self.spans)
            for name in groups.topology.links(groups.rank)
        }

    def fill(self, name: str, parts: Sequence[torch.Tensor]) -> InSlot:
        """Copy the CUDA tensors of a message into a slot; raises as ``CudaLink.fill``."""
        return self._links[name].fill(parts)

    def send(self, name: str, outgoing: Outgoing, issue: Issue) -> None:
        """Put the CUDA tensors of a message on their way."""
        if outgoing.in_slot is not None:
            self._links[name].send(outgoing.in_slot, issue, outgoing.message.ids.where())
        self.spans.poll()

    def reserve(self, name: str, incoming: Incoming) -> None:
        """Give a message the slot into which its CUDA tensors will come; raises as ``CudaLink.reserve``."""
        if not incoming.on_device:
            return
        try:
            incoming.in_slot = self._links[name].reserve(incoming.on_device)
        except LocalProtocolError as error:
            error.at(**incoming.message.ids.where())
            raise

    def receive(self, name: str, incoming: Incoming, issue: Issue) -> None:
        """Begin to receive the CUDA tensors that a frame has announced."""
        if incoming.in_slot is not None:
            self._links[name].receive(incoming.in_slot, issue, incoming.message.ids.where())
        self.spans.poll()

    def pass_on(self, incoming: Incoming, issue: Issue) -> None:
        """Broadcast to the mesh the CUDA tensors that the leader receives."""
        if incoming.in_slot is not None:
            self._links["mesh_pg"].pass_on(incoming.in_slot, issue, incoming.message.ids.where())

    def complete(self, name: str, incoming: Incoming) -> Any:  # noqa: ANN401
        """Return the message with its CUDA tensors; all work that is launched later waits for them."""
        if incoming.in_slot is None:
            return incoming.message
        return incoming.with_device(self._links[name].take(incoming.in_slot))

    def computing(self, name: str, which: WhichChunk) -> AbstractContextManager[DeviceSpan]:
        """Record the time that the body's kernels take on the device."""
        return self.spans.span(name, lane=DEVICE_LANE, ids=which)

    def begin(self, name: str, which: WhichChunk) -> DeviceSpan:
        """Return a span that begins where the device is now; whoever ends it does not write it."""
        return self.spans.begin(name, lane=DEVICE_LANE, ids=which)

    def launched(self, name: str | None = None) -> torch.cuda.Event:
        """Return an event that passes after the work launched on a link, or on the current stream."""
        # Blocking: a thread that waits for this event sleeps and does not spin.
        event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream() if name is None else self._links[name].stream)
        return event
