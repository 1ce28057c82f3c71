"""Messages on their way: an outgoing one past its preflight, an incoming one with its tensors in place.

What ``links`` moves, in this order: the frame; the overflow of a long body; the other CPU tensors, into one
receive buffer from a pool, where the small ones come first and together. CUDA tensors go their own way
(``cuda_links``). Nothing here does I/O.
"""

from __future__ import annotations

import logging
import weakref
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import torch

from ppwork.protocol.envelope import PPEnvelope, PPResult, TensorSpec
from ppwork.protocol.header import Header, Limits
from ppwork.protocol.plan import PipelinePlan
from ppwork.protocol.wire import Decoder, Encoder, Layout, to_message
from ppwork.runtime.slots import InSlot
from ppwork.runtime.tensors import SpecTable, as_bytes, copy_bytes, from_bytes, inside

if TYPE_CHECKING:
    from numpy.typing import NDArray

log = logging.getLogger(__name__)

Fill = Callable[[Sequence[torch.Tensor]], InSlot]
SUBCLASS = "the tensor %r of chunk %d is a %s, and arrives as a plain tensor (said once for each %s)"
FREE_BUFFERS = 2
"""Buffers kept for the next message besides those in use."""


def limits_of(plan: PipelinePlan) -> Limits:
    """Return the wire limits that the plan agreed on."""
    return Limits(frame_bytes=plan.frame_bytes, max_message_bytes=plan.max_message_bytes)


@dataclass(slots=True)
class Outgoing:
    """A message past its whole preflight (rule R1): only the link can fail now."""

    message: PPEnvelope | PPResult
    head: list[torch.Tensor]
    """The frame, and the overflow if there is one: uint8 on the CPU."""
    payload: list[torch.Tensor]
    """CPU tensors behind the frame, as bytes: the small ones together, copied; of the others views."""
    in_slot: InSlot | None
    """The CUDA tensors, copied; ``cuda_links`` sends them."""
    tag: int
    """The schema's id: receives that were posted ahead for this schema get this payload, and no others."""


@dataclass(slots=True)
class Incoming:
    """A received message, and the parts it came in for passing on."""

    message: PPEnvelope | PPResult
    header: Header
    head: list[torch.Tensor]
    recv_buffer: torch.Tensor | None
    layout: Layout
    in_slot: InSlot | None = None
    """The place that the CUDA tensors come into, once ``cuda_links`` has reserved one."""

    @property
    def on_device(self) -> list[TensorSpec]:
        """The CUDA tensors that are still to come; the message does not have them yet."""
        return [spec for spec in self.layout.specs if spec.device == "cuda"]

    def with_device(self, tensors: Mapping[str, torch.Tensor]) -> PPEnvelope | PPResult:
        """Return the whole message, all tensors in declared order."""
        every = {**self.message.tensors, **tensors}
        ordered = {spec.name: every[spec.name] for spec in self.layout.specs}
        return msgspec.structs.replace(self.message, tensors=ordered)


class Preflight:
    """Everything about sending that can raise, except sending; one for each direction of a link.

    Args:
        limits: The wire limits of the plan.
        device: This rank's device.
        fill: Copies CUDA tensors, as bytes, into a slot of the link; ``None`` without a GPU.

    Attributes:
        encoder: The sending end's half of the wire.
    """

    def __init__(self, limits: Limits, device: torch.device, fill: Fill | None = None) -> None:
        self.encoder = Encoder(limits)
        self._specs = SpecTable(device)
        self._pool = BufferPool(FREE_BUFFERS)
        self._fill = fill
        self._plain: set[type] = {torch.Tensor, torch.nn.Parameter}
        """Classes that nobody misses at the other end, and those that were told of."""

    def __call__(self, message: PPEnvelope | PPResult) -> Outgoing:
        """Check and encode a message.

        Raises:
            LocalProtocolError: A tensor, the metadata or the chunk plan cannot travel, or the device has no
                room for a slot; names it (the sending rank; no byte has left).

        Collective:
            None.
        """
        specs, in_slot = self._specs.specs_of(message.tensors), None
        for name, tensor in message.tensors.items():
            if (kind := type(tensor)) not in self._plain:
                self._plain.add(kind)
                log.warning(SUBCLASS, name, message.ids.chunk_index, kind.__name__, kind.__name__)
        if self._fill is not None and any(spec.device == "cuda" for spec in specs):
            # Before the encoder, which takes a schema for announced: a slot may find no memory.
            self.encoder.check(message, specs, new_specs=True)
            in_slot = self._fill([as_bytes(message.tensors[s.name]) for s in specs if s.device == "cuda"])
        encoded = self.encoder.encode(message, specs)
        frame = torch.frombuffer(encoded.frame, dtype=torch.uint8)
        outgoing = Outgoing(message, [frame], [], in_slot, encoded.header.schema_id)
        if encoded.overflow:
            outgoing.head.append(torch.frombuffer(bytearray(encoded.overflow), dtype=torch.uint8))
        layout, in_frame, in_joined = encoded.layout, frame.data_ptr(), 0
        if layout.joined_bytes:
            outgoing.payload.append(joined := self._pool.take(layout.joined_bytes))
            in_joined = joined.data_ptr()
        for spec, inline, behind in zip(layout.specs, layout.inline, layout.behind, strict=True):
            tensor = message.tensors[spec.name]
            if inline is not None:
                copy_bytes(tensor, in_frame + inline)
            elif behind is not None and behind < layout.joined_bytes:
                copy_bytes(tensor, in_joined + behind)
            elif behind is not None:
                outgoing.payload.append(as_bytes(tensor))
        return outgoing


class RecvBuffer:
    """Host memory for the CPU tensors of one schema that come behind the frame.

    Attributes:
        raw: ``[recv_bytes]`` uint8; what is passed on in one piece.
        parts: What each transfer fills, as bytes.
        views: Per tensor of the schema: itself, or ``None`` if it does not come behind the frame.
    """

    def __init__(self, layout: Layout, raw: torch.Tensor) -> None:
        self.raw = raw
        self.parts: list[torch.Tensor] = [raw[: layout.joined_bytes]] if layout.joined_bytes else []
        self.views: list[torch.Tensor | None] = []
        for spec, offset in zip(layout.specs, layout.behind, strict=True):
            part = None if offset is None else raw[offset : offset + spec.nbytes]
            if part is not None and offset is not None and offset >= layout.joined_bytes:
                self.parts.append(part)
            self.views.append(None if part is None else from_bytes(part, spec))


class MessageReader:
    """A message that is awaited, and then read step by step: header, overflow, body, tensors.

    Args:
        decoder: The receiving end's, in step with the sender's encoder.
        expected: The layout that has repeated: what can be prepared for it is prepared now, while nobody
            waits, and not when the frame is here.

    Attributes:
        head: The frame and, after ``begin``, the overflow if there is one: uint8 on the CPU, to be filled.
    """

    def __init__(self, decoder: Decoder, expected: Layout | None) -> None:
        self._decoder, self._expected = decoder, expected
        self._frame = bytearray(decoder.limits.frame_bytes)
        self._overflow = bytearray()
        self.head = [torch.frombuffer(self._frame, dtype=torch.uint8)]
        self._inline = [] if expected is None else inline_views(self._frame, expected)

    def starts_with(self, mark: bytes) -> bool:
        """Say whether the frame that has come starts so."""
        return self._frame.startswith(mark)

    def begin(self) -> Header:
        """Check the header of the frame that has come; raises as ``Decoder.header``."""
        self.header: Header = self._decoder.header(self._frame)
        if size := self.header.overflow_bytes(self._decoder.limits):
            self._overflow = bytearray(size)
            self.head.append(torch.frombuffer(self._overflow, dtype=torch.uint8))
        return self.header

    def open(self) -> Layout:
        """Read the body; return what is still to come. Raises as ``Decoder.body``."""
        self._decoded = self._decoder.body(self.header, self._frame, bytes(self._overflow))
        return self._decoded.layout

    def message(self, recv_buffer: RecvBuffer | None) -> Incoming:
        """Return the message; its CPU tensors are views of what was received, and belong to the caller."""
        layout = self._decoded.layout
        inline = self._inline if layout is self._expected else inline_views(self._frame, layout)
        received = [None] * len(layout.specs) if recv_buffer is None else recv_buffer.views
        tensors: dict[str, torch.Tensor] = {}
        for spec, in_frame, behind in zip(layout.specs, inline, received, strict=True):
            tensor = in_frame if behind is None else behind
            if tensor is not None:
                tensors[spec.name] = tensor
            elif spec.device == "cpu":
                tensors[spec.name] = from_bytes(torch.empty(0, dtype=torch.uint8), spec)
        raw = None if recv_buffer is None else recv_buffer.raw
        return Incoming(to_message(self._decoded, tensors), self.header, self.head, raw, layout)


def inline_views(frame: bytearray, layout: Layout) -> list[torch.Tensor | None]:
    """Return, per tensor of the schema, itself in the frame, or ``None`` if it does not ride there."""
    return [
        None if offset is None else inside(frame, offset, spec)
        for spec, offset in zip(layout.specs, layout.inline, strict=True)
    ]


class BufferPool:
    """Host memory that payloads land in: owned, used again, and never while anybody still looks at it.

    A fresh buffer of some megabytes costs a page fault for every 4 KB of it, on the lane, for every chunk;
    these are touched once. A buffer comes back when the last tensor that shares its memory is gone, whoever
    keeps it: a generator that holds on to its input (a rolling cache) holds the buffer, and the pool makes
    another. So what is in flight never aliases what computes (rule R8), and nothing is copied for it. The
    pool has buffers of the size that was asked for last; another size lets the old ones go.

    Args:
        keep: Most free buffers kept for the next message.
    """

    def __init__(self, keep: int) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=keep)

    def take(self, nbytes: int) -> torch.Tensor:
        """Return ``[nbytes]`` uint8 on the CPU, its content undefined; nobody else sees this memory."""
        base = None
        while base is None:
            # A finalizer appends at any moment: on another thread, or on this one amid a collection, where a
            # lock would block for ever. So nothing is looked at before it is popped, and one pop is atomic.
            try:
                free = self._free.pop()
            except IndexError:
                base = np.empty(nbytes, dtype=np.uint8)
            else:
                base = free if free.nbytes == nbytes else None
        # torch keeps this view, not the base, as long as any tensor shares the memory.
        lent = base.view()
        weakref.finalize(lent, partial(self._free.append, base)).atexit = False
        return torch.from_numpy(lent)
