"""Landings are used again, and never while anybody still looks at them (R8)."""

from __future__ import annotations

import threading
from collections import deque

import pytest
import torch

from ppwork.runtime.messages import BufferPool

SIZE = 1 << 16


def test_a_buffer_is_used_again_when_the_last_tensor_in_it_is_gone():
    pool = BufferPool(2)
    first = pool.take(SIZE)
    address, part = first.data_ptr(), first[:64].view(torch.float32)
    del first
    assert pool.take(SIZE).data_ptr() != address, "a part of it is still looked at"
    del part
    assert address in {pool.take(SIZE).data_ptr() for _ in range(1)}


def test_what_somebody_keeps_is_never_written_over():
    pool = BufferPool(2)
    kept = []
    for value in range(10):
        buffer = pool.take(SIZE)
        buffer.fill_(value)
        if value % 3 == 0:
            kept.append(buffer[100:200].view(2, 50))
    assert [int(tensor.unique().item()) for tensor in kept] == [0, 3, 6, 9]


def test_another_size_lets_the_old_ones_go_and_no_more_than_keep_are_held():
    pool = BufferPool(2)
    held = [pool.take(SIZE) for _ in range(5)]
    held.clear()
    assert len(pool._free) == 2
    assert pool.take(2 * SIZE).numel() == 2 * SIZE
    assert [base.nbytes for base in pool._free] in ([], [2 * SIZE])


def test_a_buffer_that_comes_back_amid_a_take_is_not_mistaken_for_one_of_the_size_asked_for():
    """The last tensor of 16 bytes goes on another thread when ``take`` is about to pop 64 bytes."""
    pool, small = BufferPool(4), []

    class Interrupted(deque):
        def pop(self):
            lane = threading.Thread(target=small.clear)
            lane.start()
            lane.join()
            return super().pop()

    pool._free = Interrupted(maxlen=4)
    small, address = [pool.take(16)], pool.take(64).data_ptr()
    again = pool.take(64)
    assert not small, "the finalizer ran amid this take"
    assert again.numel() == 64
    assert again.data_ptr() == address, "the buffer of this size was free all the time"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool, torch.int64, torch.complex64])
def test_any_dense_dtype_can_stand_in_a_buffer(dtype):
    values = torch.arange(16).to(dtype)
    buffer = BufferPool(1).take(values.numel() * values.element_size())
    buffer.view(dtype).copy_(values)
    assert torch.equal(buffer.view(dtype), values)
