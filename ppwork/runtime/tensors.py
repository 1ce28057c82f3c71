"""Tensors as bytes: what may travel, its spec, and the uint8 views that the backends see.

gloo and NCCL check neither size nor dtype, and gloo's collectives refuse some dtypes. So every tensor travels
as uint8, and its spec has the dtype.
"""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import torch

from ppwork.errors import LocalProtocolError
from ppwork.protocol.envelope import ITEM_SIZES, TensorSpec

SAMPLE_BYTES, WHOLE_BYTES = 256, 4096
"""Least bytes that are sampled of a tensor; a tensor of up to ``WHOLE_BYTES`` is summed whole."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return torch's name of a dtype without the package: ``bfloat16``."""
    return str(dtype).removeprefix("torch.")


def spec_of(name: str, tensor: object, device: torch.device) -> TensorSpec:
    """Check that a tensor may travel and return its spec.

    Args:
        name: The tensor's key in the message.
        tensor: Should be a dense, contiguous tensor.
        device: This rank's device; CUDA tensors need an NCCL plan.

    Raises:
        LocalProtocolError: The value is not a tensor, has no memory of its own (DTensor), is nested, sparse,
            quantised, meta, on another device, of a dtype that cannot travel, non-contiguous, or a lazy
            conjugate or negative view (the sending rank; nothing was sent).
    """
    problem, remedy = "", ""
    if not isinstance(tensor, torch.Tensor):
        problem = f"was a {type(tensor).__name__}, not a tensor"
        remedy = "torch.as_tensor() makes one; plain data goes into the metadata"
    elif tensor.is_nested:  # its sizes cannot be asked for
        problem, remedy = (
            "was nested",
            "send its parts, `.unbind()`, by names of their own, or `.to_padded_tensor(0)`",
        )
    elif type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__:
        # It has no address of its own: a copy from there would crash the process.
        problem = f"was a {type(tensor).__name__}, which has no memory of its own"
        remedy = ".to_local() or .full_tensor() of a DTensor, .wait() of an AsyncCollectiveTensor"
    elif tensor.is_quantized:
        problem, remedy = "was quantised", "send tensor.int_repr() and the scales in the metadata"
    elif tensor.layout is not torch.strided:
        problem, remedy = f"had layout {tensor.layout}", "send its indices and values, or .to_dense()"
    elif tensor.device.type not in ("cpu", "cuda"):
        problem, remedy = f"was on {tensor.device}", "a meta tensor has no data; move others to the CPU"
    elif tensor.device.type == "cuda" and tensor.device != device:
        problem, remedy = f"was on {tensor.device}, this rank's device is {device}", "move it with .to()"
    elif dtype_name(tensor.dtype) not in ITEM_SIZES:
        problem, remedy = f"had dtype {tensor.dtype}", "convert it to a dense dtype"
    elif not tensor.is_contiguous():
        problem = f"was a non-contiguous view: shape {list(tensor.shape)}, strides {tensor.stride()}"
        remedy = f"{name!r} as `.contiguous()`, a copy of {tensor.nbytes} bytes"
        remedy += "; `copy=True` in a loop of your own makes it, too"
    elif tensor.is_conj() or tensor.is_neg():
        problem, remedy = "was a lazy conjugate or negative view", "call .resolve_conj().resolve_neg()"
    if problem or not isinstance(tensor, torch.Tensor):
        raise LocalProtocolError(f"The tensor {name!r} {problem}.", check_first=remedy)
    return TensorSpec(name, dtype_name(tensor.dtype), tuple(tensor.shape), tensor.device.type)


def check_by_name(tensors: object) -> None:
    """Check that the tensors come as a mapping by name.

    Raises:
        LocalProtocolError: They do not (the sending rank; nothing was sent).
    """
    if not isinstance(tensors, Mapping) or not all(isinstance(name, str) for name in tensors):
        names = f" with the keys {[*tensors]}" if isinstance(tensors, Mapping) else ""
        raise LocalProtocolError(
            f"A {type(tensors).__name__}{names} was handed over, and not tensors by name.",
            check_first='a dict, such as {"x": x}',
        )


def check_kind(kind: type, **given: object) -> None:
    """Check that arguments are of exactly this kind: what only looks like it may fail on another rank.

    Raises:
        LocalProtocolError: One is not (the calling rank; nothing was sent).
    """
    for name, value in given.items():
        if type(value) is not kind:
            what = f"`{name}` was {value!r}, of type {type(value).__name__} and not {kind.__name__}."
            check = (
                f"a plain {kind.__name__}: of a number of numpy's or torch's `{kind.__name__}(...)` makes one"
            )
            raise LocalProtocolError(what, check_first=check)


def specs_of(tensors: Mapping[str, object], device: torch.device) -> tuple[TensorSpec, ...]:
    """Return the specs of all tensors, in declared order; see ``spec_of``."""
    return tuple(spec_of(name, tensor, device) for name, tensor in tensors.items())


class SpecTable:
    """The specs of tensors whose kind was checked before: a stream repeats its kinds, so one check is enough.

    Args:
        device: This rank's device.
    """

    MOST = 64

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._checked: dict[tuple[object, ...], tuple[TensorSpec, ...]] = {}

    def specs_of(self, tensors: Mapping[str, Any]) -> tuple[TensorSpec, ...]:
        """Return the specs of all tensors, in declared order; raises as ``spec_of``."""
        try:
            # All properties that ``spec_of`` checks.
            kinds = tuple(
                (n, type(t), t.dtype, t.shape, t.device, t.layout, t.is_contiguous(), t.is_conj(), t.is_neg())
                for n, t in tensors.items()
            )
            specs = self._checked.get(kinds)
        except (AttributeError, RuntimeError, TypeError):  # no dense tensor: the full check says what it is
            return specs_of(tensors, self._device)
        if specs is None:
            specs = specs_of(tensors, self._device)
            if len(self._checked) == self.MOST:
                self._checked.clear()
            self._checked[kinds] = specs
        return specs


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """View a contiguous tensor as flat uint8, without a copy."""
    flat = tensor.detach() if tensor.requires_grad else tensor
    if flat.dtype.is_complex:
        flat = torch.view_as_real(flat)
    return (flat if flat.dim() == 1 else flat.reshape(-1)).view(torch.uint8)


def from_bytes(raw: torch.Tensor, spec: TensorSpec) -> torch.Tensor:
    """View flat uint8 as the tensor of a spec, without a copy.

    Args:
        raw: ``[spec.nbytes]`` uint8, contiguous, aligned to the item size.
        spec: Dtype and shape.
    """
    dtype: torch.dtype = getattr(torch, spec.dtype)
    return raw.view(dtype).reshape(spec.shape)


def digest_of(tensor: torch.Tensor) -> int:
    """Return the CRC-32 of a dense tensor's bytes, in row-major order.

    The digest is the same on every host for the same bytes; dtype and shape are not part of it.
    """
    return zlib.crc32(as_bytes(tensor.cpu().contiguous()).numpy().data)


def sample_of(tensor: torch.Tensor, *, whole: bool = False) -> memoryview:
    """View some bytes of a contiguous CPU tensor, spread over all of it: at least ``SAMPLE_BYTES``.

    Args:
        tensor: If it has at most ``WHOLE_BYTES``, the view has all bytes.
        whole: View all bytes, whatever the size.
    """
    # Not with numpy or torch: after a pause, with cold caches, that took seven times as long.
    size = tensor.nbytes
    raw = memoryview(_array_of(size).from_address(tensor.data_ptr())) if size else memoryview(b"")
    if whole or size <= WHOLE_BYTES:
        return raw
    # An odd step, so that each byte of an item has its turn: the low bytes of small whole floats are all 0.
    return raw[:: (size // SAMPLE_BYTES - 1) | 1]


def checksum_of(raw: memoryview, before: int = 0) -> int:
    """Return the CRC-32 of a view from ``sample_of``, continued from the checksum ``before``."""
    return zlib.crc32(raw if raw.contiguous else raw.tobytes(), before)


@lru_cache(64)
def _array_of(nbytes: int) -> type[ctypes.Array[ctypes.c_uint8]]:
    return ctypes.c_uint8 * nbytes


def copy_bytes(tensor: torch.Tensor, address: int) -> None:
    """Copy a small dense CPU tensor to a place in host memory that is known to have room for it."""
    # This takes a tenth of the time of an assignment between two uint8 views.
    ctypes.memmove(address, tensor.data_ptr(), tensor.numel() * tensor.element_size())


def inside(frame: bytearray, offset: int, spec: TensorSpec) -> torch.Tensor:
    """Return the tensor of a spec that is inside a frame, without a copy; it keeps the frame alive."""
    dtype: torch.dtype = getattr(torch, spec.dtype)
    flat = torch.frombuffer(frame, dtype=dtype, count=spec.numel, offset=offset)
    return flat if len(spec.shape) == 1 else flat.view(spec.shape)
