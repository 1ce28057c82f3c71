"""How a message is packed into a slot: places, copies in and out. Who waits for whom: test_cuda_links."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ppwork.protocol.envelope import TensorSpec
from ppwork.runtime.slots import ALIGN, copy_in, copy_out, places
from ppwork.runtime.tensors import as_bytes, dtype_name

SIZES = st.lists(st.integers(0, 5 * ALIGN), max_size=8)


@given(SIZES)
def test_parts_are_aligned_do_not_touch_and_fill_no_more_than_needed(sizes):
    offsets, nbytes = places(sizes)
    taken = [(offset, offset + size) for offset, size in zip(offsets, sizes, strict=True) if size]
    assert all(start % ALIGN == 0 for start, _ in taken)
    assert all(before[1] <= after[0] < before[1] + ALIGN for before, after in pairwise(taken))
    assert nbytes == max((end for _, end in taken), default=0)


@given(SIZES)
def test_an_empty_part_moves_no_other(sizes):
    """The sender leaves empty tensors out, the receiver has their specs: both must agree on the rest."""
    offsets, nbytes = places(sizes)
    assert places([size for size in sizes if size]) == (
        [offset for offset, size in zip(offsets, sizes, strict=True) if size],
        nbytes,
    )


def message() -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "bool": (3,),
        "float8_e5m2": (5, 7),
        "bfloat16": (2, 3, 5),
        "float32": (),
        "int64": (0, 4),
        "complex128": (9,),
        "uint8": (ALIGN + 1,),
    }
    tensors = {}
    for name, shape in shapes.items():
        dtype = getattr(torch, name)
        raw = torch.randint(0, 2, (torch.Size(shape).numel() * dtype.itemsize,), generator=generator)
        tensors[name] = raw.to(torch.uint8).view(dtype).reshape(shape)
    return tensors


def specs_of(tensors: dict[str, torch.Tensor]) -> list[TensorSpec]:
    return [
        TensorSpec(name, dtype_name(one.dtype), tuple(one.shape), "cuda") for name, one in tensors.items()
    ]


@pytest.fixture
def filled():
    tensors = message()
    specs = specs_of(tensors)
    buffer = torch.full((places([spec.nbytes for spec in specs])[1],), 255, dtype=torch.uint8)
    copy_in(buffer, [as_bytes(one) for one in tensors.values() if one.numel()])
    return tensors, specs, buffer


def test_what_is_copied_out_is_what_was_copied_in(filled):
    tensors, specs, buffer = filled
    out = copy_out(buffer, specs)
    assert list(out) == list(tensors)
    for name, one in tensors.items():
        assert (out[name].dtype, out[name].shape) == (one.dtype, one.shape)
        assert torch.equal(as_bytes(out[name]), as_bytes(one)), name


def test_nothing_copied_out_aliases_the_slot(filled):
    """R8: the next message into the slot must not change a tensor that somebody keeps."""
    tensors, specs, buffer = filled
    out = copy_out(buffer, specs)
    buffer.fill_(7)
    assert all(torch.equal(as_bytes(out[name]), as_bytes(one)) for name, one in tensors.items())
