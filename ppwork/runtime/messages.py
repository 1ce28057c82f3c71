"""Messages on their way: an outgoing message after preflight, an incoming message with its tensors in place.

``links`` moves the parts in this order: the frame; the overflow of a long body; the other CPU tensors, into
one receive buffer from a pool, where the small tensors come first and together. CUDA tensors take another way
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
"""Free buffers kept for the next message."""


def limits_of(plan: PipelinePlan) -> Limits:
    """Return the wire limits of the plan."""
    return Limits(frame_bytes=plan.frame_bytes, max_message_bytes=plan.max_message_bytes)


@dataclass(slots=True)
class Outgoing:
    """A message after its whole preflight (rule R1): from here on only the link can fail."""

    message: PPEnvelope | PPResult
    head: list[torch.Tensor]
    """The frame, and the overflow if there is one: uint8 on the CPU."""
    payload: list[torch.Tensor]
    """CPU tensors behind the frame, as bytes: a joined copy of the small ones, and views of the others."""
    in_slot: InSlot | None
    """The CUDA tensors, copied; ``cuda_links`` sends them."""
    tag: int
    """The schema's id: only receives that were posted ahead for this schema get this payload."""


@dataclass(slots=True)
class Incoming:
    """A received message, and its parts as they came, for passing on."""

    message: PPEnvelope | PPResult
    header: Header
    head: list[torch.Tensor]
    recv_buffer: torch.Tensor | None
    layout: Layout
    in_slot: InSlot | None = None
    """The place for the CUDA tensors, once ``cuda_links`` has reserved one."""

    @property
    def on_device(self) -> list[TensorSpec]:
        """Specs of the CUDA tensors, which are still to come; the message does not have them yet."""
        return [spec for spec in self.layout.specs if spec.device == "cuda"]

    def with_device(self, tensors: Mapping[str, torch.Tensor]) -> PPEnvelope | PPResult:
        """Return the message with all its tensors, in declared order."""
        every = {**self.message.tensors, **tensors}
        ordered = {spec.name: every[spec.name] for spec in self.layout.specs}
        return msgspec.structs.replace(self.message, tensors=ordered)


class Preflight:
    """All steps of sending that can raise, except the transfer; one object for each direction of a link.

    Args:
        limits: The wire limits of the plan.
        device: This rank's device.
        fill: Copies CUDA tensors, as bytes, into a slot of the link; ``None`` without a GPU.

    Attributes:
        encoder: The encoder of the sending end.
    """

    def __init__(self, limits: Limits, device: torch.device, fill: Fill | None = None) -> None:
        self.encoder = Encoder(limits)
        self._specs = SpecTable(device)
        self._pool = BufferPool(FREE_BUFFERS)
        self._fill = fill
        self._plain: set[type] = {torch.Tensor, torch.nn.Parameter}
        """Tensor classes that need no warning or have had it: the other end loses the class."""

    def __call__(self, message: PPEnvelope | PPResult) -> Outgoing:
        """Check and encode a message.

        Raises:
            LocalProtocolError: A tensor, the metadata or the chunk plan cannot travel, or the device has no
                room for a slot; names the part (the sending rank; no byte has left).

        Collective:
            None.
        """
        specs, in_slot = self._specs.specs_of(message.tensors), None
        for name, tensor in message.tensors.items():
            if (kind := type(tensor)) not in self._plain:
                self._plain.add(kind)
                log.warning(SUBCLASS, name, message.ids.chunk_index, kind.__name__, kind.__name__)
        if self._fill is not None and any(spec.device == "cuda" for spec in specs):
            # Before the encoder, which marks a schema as announced: a slot may find no memory.
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

    def check(self, message: PPEnvelope | PPResult) -> None:
        """Refuse a message as a call of this does, and leave everything as it is."""
        self.encoder.check(message, self._specs.specs_of(message.tensors), new_specs=True)
        self.encoder.body(message)


class RecvBuffer:
    """Host memory for the CPU tensors of one schema that come behind the frame.

    Attributes:
        raw: ``[recv_bytes]`` uint8; the leader passes it on in one piece.
        parts: The part that each transfer fills, as bytes.
        views: For each tensor of the schema: the tensor, or ``None`` if it does not come behind the frame.
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
    """Reads one awaited message step by step: header, overflow, body, tensors.

    Args:
        decoder: The receiving end's decoder, in step with the sender's encoder.
        expected: The layout that has repeated: what it needs is prepared now, while no rank waits, and not
            when the frame has come.

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
        """Say whether the frame that has come starts with ``mark``."""
        return self._frame.startswith(mark)

    def begin(self) -> Header:
        """Check the header of the frame that has come; raises as ``Decoder.header``."""
        self.header: Header = self._decoder.header(self._frame)
        if size := self.header.overflow_bytes(self._decoder.limits):
            self._overflow = bytearray(size)
            self.head.append(torch.frombuffer(self._overflow, dtype=torch.uint8))
        return self.header

    def open(self) -> Layout:
        """Read the body and return the layout of the tensors; raises as ``Decoder.body``."""
        self._decoded = self._decoder.body(self.header, self._frame, bytes(self._overflow))
        return self._decoded.layout

    def message(self, recv_buffer: RecvBuffer | None) -> Incoming:
        """Return the message; its CPU tensors are views of the received bytes, and belong to the caller."""
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
    """Return, for each tensor of the schema, its view in the frame, or ``None`` if it is not there."""
    return [
        None if offset is None else inside(frame, offset, spec)
        for spec, offset in zip(layout.specs, layout.inline, strict=True)
    ]


class BufferPool:
    """Host memory for payloads: owned and reused, but never while a tensor still uses it.

    A fresh buffer of some megabytes costs a page fault for every 4 KB, on the lane, for every chunk; pooled
    buffers cost that once. A buffer comes back when the last tensor that shares its memory is gone. If a
    generator keeps its input (a rolling cache), it keeps the buffer, and the pool makes another. So buffers
    in flight never alias tensors that compute (rule R8), without a copy. The pool keeps buffers of the size
    that was asked for last; a request for another size drops the old ones.

    Args:
        keep: Most free buffers kept for the next message.
    """

    def __init__(self, keep: int) -> None:
        self._free: deque[NDArray[np.uint8]] = deque(maxlen=keep)

    def take(self, nbytes: int) -> torch.Tensor:
        """Return ``[nbytes]`` uint8 on the CPU, of undefined content; nothing else uses this memory."""
        base = None
        while base is None:
            # A finalizer may append at any moment: on another thread, or on this one amid a collection, where
            # a lock would block for ever. So look at nothing before it is popped; one pop is atomic.
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
