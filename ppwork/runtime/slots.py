"""A message in a slot: one device buffer for all of its CUDA tensors, and the events that order its use.

``cuda_links`` moves the bytes, and decides which stream waits for which.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from ppwork.protocol.envelope import TensorSpec
from ppwork.runtime.tensors import from_bytes

ALIGN = 256
"""Alignment in bytes of each part in a slot, the same as for a tensor of its own."""


def places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Place parts of these sizes one after another, aligned; both ends compute the same.

    Args:
        sizes: Bytes of each part; may be 0.

    Returns:
        The offset of each part, and the total size, in bytes.
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
        # A wait for an event that was never recorded does nothing: so a new slot counts as empty.
        self.full = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.empty = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self.lent = False
        """Whether a message comes into the slot, or is in it, and was not taken."""


@dataclass(frozen=True)
class InSlot:
    """The place of one message in a slot."""

    slot: Slot
    raw: torch.Tensor
    """The message's bytes: ``[nbytes]`` uint8, a view of the slot's buffer."""
    specs: Sequence[TensorSpec] = ()
    """Specs of a received message: the tensors to copy out."""
