"""The two messages, envelope and result, and their parts: action, ids, plan of a chunk, tensor specs.

``PPEnvelope`` goes from stage 0 to the mesh, ``PPResult`` back. This module defines what a message *is*.
``wire`` defines its bytes, and ``session`` decides when it may be sent.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any

import msgspec

CONTEXT_PREFIX = "context."
"""Prefix of the names of the tensors that rebuild the cache; ``recompute`` needs these tensors (F10)."""

ITEM_SIZES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "float8_e4m3fn": 1,
    "float8_e4m3fnuz": 1,
    "float8_e5m2": 1,
    "float8_e5m2fnuz": 1,
    "float8_e8m0fnu": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "bfloat16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "complex32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
    "complex64": 8,
    "complex128": 16,
}
"""Bytes per element of every dense dtype that may travel, by torch's name of the dtype."""

MAX_DIMS = 8
MAX_NAME = 128
MAX_STEPS = 10_000


class PPAction(IntEnum):
    """The request of a message."""

    NOOP = 0
    """Heartbeat, no payload."""
    INFER = 1
    """A chunk; its payload follows."""
    SHUTDOWN = 2
    """The drain is done: acknowledge and leave."""
    ERROR = 3
    """Terminal; carries the reason."""


class Ids(msgspec.Struct, frozen=True, gc=False):
    """The three counters of rule R2."""

    call_id: int
    """Counts every action."""
    chunk_index: int
    """Counts INFER only; -1 before the first."""
    cache_epoch: int
    """Counts hard cuts."""

    def where(self) -> dict[str, int]:
        """Return the ids as facts for an error or a log line."""
        return {"call_id": self.call_id, "chunk_index": self.chunk_index, "cache_epoch": self.cache_epoch}


class ChunkPlan(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The plan of one chunk (rule R4). It travels; no rank infers it. A loop reads it as ``chunk.plan``."""

    steps: int
    """Generator calls without recompute."""
    expected_calls: int
    """Generator calls that every mesh rank must make: ``steps``, plus one for ``recompute``."""
    recompute: bool = False
    """Rebuild the cache from the ``context.*`` tensors first."""
    reset_cache: bool = False
    """Clear the cache first: a hard cut, or a flush."""

    @classmethod
    def of(cls, steps: int, *, recompute: bool = False, reset_cache: bool = False) -> ChunkPlan:
        """Return the consistent plan for these choices."""
        return cls(steps, steps + int(recompute), recompute, reset_cache)

    def problem(self, specs: Sequence[TensorSpec]) -> str | None:
        """Say why this plan cannot be carried out with these tensors, or ``None`` if it can."""
        if not 1 <= self.steps <= MAX_STEPS:
            return f"The plan of the chunk had {self.steps} denoise steps; 1..{MAX_STEPS} are allowed."
        if self.expected_calls != self.steps + int(self.recompute):
            return (
                f"The plan of the chunk expected {self.expected_calls} generator calls, but "
                f"{self.steps} step{'s' if self.steps > 1 else ''} and recompute={self.recompute} make "
                f"{self.steps + int(self.recompute)}."
            )
        if self.recompute and not any(s.name.startswith(CONTEXT_PREFIX) for s in specs):
            return "The plan of the chunk asked for recompute, but no context frames came with it."
        return None


class TensorSpec(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Name, dtype, shape and kind of device of one tensor, without its data."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    device: str = "cpu"
    """``cpu`` or ``cuda``: which link carries the bytes. No device index: each rank has its own."""

    @property
    def numel(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the dense data."""
        return self.numel * ITEM_SIZES[self.dtype]

    def problem(self) -> str | None:
        """Say why this spec cannot travel, or ``None`` if it can."""
        if not 1 <= len(self.name) <= MAX_NAME:
            return f"A tensor name had {len(self.name)} characters; 1..{MAX_NAME} are allowed."
        if self.dtype not in ITEM_SIZES:
            return f"Tensor {self.name!r} had dtype {self.dtype[:MAX_NAME]!r}, which cannot travel."
        if self.device not in ("cpu", "cuda"):
            return f"Tensor {self.name!r} was on {self.device[:MAX_NAME]!r}; only cpu and cuda can travel."
        if len(self.shape) > MAX_DIMS:
            return f"Tensor {self.name!r} had {len(self.shape)} sizes; up to {MAX_DIMS} are allowed."
        if any(size < 0 or size >= 1 << 48 for size in self.shape):
            return f"Tensor {self.name!r} had shape {self.shape}; sizes of 0 to 2**48 - 1 are allowed."
        # A size of 0 does not make the tensor valid: torch computes strides as products of the other sizes.
        if math.prod(max(size, 1) for size in self.shape) * ITEM_SIZES[self.dtype] >= 1 << 63:
            return f"Tensor {self.name!r} had shape {self.shape}, more than any memory holds."
        return None


class Reason(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """Why a session ended: the three parts of an error, and its type's name."""

    error_type: str
    what: str
    where: dict[str, str | int]
    check_first: str


class PPEnvelope(msgspec.Struct, frozen=True):
    """Stage 0 to mesh.

    Attributes:
        tensors: Named dense tensors, contiguous, in declared order; empty unless INFER.
        metadata: Anything that msgpack can carry; the runtime does not look inside.
        reason: With ERROR only.
    """

    action: PPAction
    ids: Ids
    plan: ChunkPlan | None = None
    metadata: Mapping[str, Any] = {}
    tensors: Mapping[str, Any] = {}
    reason: Reason | None = None


class PPResult(msgspec.Struct, frozen=True):
    """Mesh to stage 0: exactly one result for each INFER and one for SHUTDOWN.

    Attributes:
        observed_calls: Generator calls that the leader made for this chunk.
        stage1_ns: Time that the generator took on the leader, in nanoseconds.
        tensors: The last step's tensors.
        reason: With ERROR only.
    """

    action: PPAction
    ids: Ids
    observed_calls: int = 0
    stage1_ns: int = 0
    metadata: Mapping[str, Any] = {}
    tensors: Mapping[str, Any] = {}
    reason: Reason | None = None
