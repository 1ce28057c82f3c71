"""Where the tensors of a message ride: in its frame, or in transfers of their own.

This follows from the specs alone and not from the length of the body, so a receiver who knows the schema
knows every size that will come, and can post the receives before the message is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ppwork.header import body_room

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ppwork.envelope import TensorSpec

ALIGN = 64


@dataclass(frozen=True)
class Layout:
    """Where the tensors of a schema ride; see ``lay_out``."""

    specs: tuple[TensorSpec, ...]
    inline: tuple[int | None, ...]
    """Per tensor: its offset in the frame, or ``None``."""
    landing: tuple[int | None, ...]
    """Per tensor: its offset in the landing, or ``None``."""
    landing_bytes: int
    """Size of the landing: host memory for all CPU tensors that travel alone, one after another."""
    payload_bytes: int
    """Bytes of all tensors together, without padding."""


def lay_out(specs: Sequence[TensorSpec], frame_bytes: int) -> Layout:
    """Decide which tensors ride in the frame, and where the others land; both ends compute the same.

    In declared order, each CPU tensor that still fits behind the room of the body is inlined at an aligned
    offset. CUDA tensors never are: copying them would synchronise the GPU.
    """
    cursor, ground = body_room(frame_bytes), 0
    inline: list[int | None] = []
    landing: list[int | None] = []
    for spec in specs:
        start = _aligned(cursor)
        on_cpu = spec.device == "cpu" and spec.nbytes > 0
        fits = on_cpu and start + spec.nbytes <= frame_bytes
        inline.append(start if fits else None)
        landing.append(ground if on_cpu and not fits else None)
        if fits:
            cursor = start + spec.nbytes
        elif on_cpu:
            ground = _aligned(ground + spec.nbytes)
    payload_bytes = sum(spec.nbytes for spec in specs)
    return Layout(tuple(specs), tuple(inline), tuple(landing), ground, payload_bytes)


def _aligned(offset: int) -> int:
    return -(-offset // ALIGN) * ALIGN


NO_TENSORS = Layout((), (), (), 0, 0)
