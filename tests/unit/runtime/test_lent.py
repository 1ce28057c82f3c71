"""Buffers that somebody writes to while the transport still reads them, and tensors that have no memory."""

import numpy as np
import pytest
import torch

from ppwork.errors import LocalProtocolError
from ppwork.runtime.lent import Lent, copies
from ppwork.runtime.tensors import SAMPLE_BYTES, WHOLE_BYTES, SpecTable


def lent(whole=0):
    return Lent(whole, "chunk", "its result had come")


def through_torch(buffer):
    buffer.add_(1)


def through_a_view(buffer):
    buffer[1:].zero_()


def in_inference_mode(buffer):
    with torch.inference_mode():
        torch.mul(buffer, 2, out=buffer)


@pytest.mark.parametrize("write", [through_torch, through_a_view, in_inference_mode])
def test_a_write_is_named_in_every_chunk_where_torch_counts_writes(write):
    loan, buffer = lent(), torch.ones(5000)
    loan.lend(7, {"still": torch.ones(2), "x": buffer})
    loan.check({"again": buffer})
    write(buffer)
    loan.check({"another": torch.ones(5000)})
    for look in (lambda: loan.check({"again": buffer}), lambda: loan.take_back(7)):
        with pytest.raises(LocalProtocolError, match="'x' of chunk 7 was written to before its") as caught:
            look()
    assert caught.value.where == {"chunk_index": 7}
    assert ".clone()" in caught.value.check_first


@pytest.mark.parametrize("chunk", [1, 7])
def test_where_torch_counts_nothing_the_bytes_are_summed(chunk):
    """An inference tensor, and a camera that fills an array of numpy: found in every chunk if filled anew."""
    with torch.inference_mode():
        hidden = torch.full((5000,), 6.0)
    frame = np.zeros(5000, np.uint8)
    loan = lent(2)
    loan.lend(chunk, {"hidden": hidden, "frame": torch.from_numpy(frame)})
    again = {"hidden": hidden, "frame": torch.from_numpy(frame)}
    loan.check(again)
    frame.fill(1)
    with pytest.raises(LocalProtocolError, match=f"'frame' of chunk {chunk}"):
        loan.check(again)
    frame.fill(0)
    loan.check(again)
    with torch.inference_mode():
        hidden.fill_(7.0)  # the two lower bytes of such a float are 0, whatever the number
    with pytest.raises(LocalProtocolError, match=f"'hidden' of chunk {chunk}"):
        loan.check(again)
    with pytest.raises(LocalProtocolError, match=f"'hidden' of chunk {chunk}"):
        loan.take_back(chunk)


def test_every_byte_is_looked_at_in_the_first_chunks_and_of_what_is_small_else_a_sample():
    frame, small = np.zeros(50_000, np.uint8), np.zeros(WHOLE_BYTES, np.uint8)
    seen = {}
    for whole in (2, -1):
        for chunk in (1, 2):
            loan = lent(whole)
            loan.lend(chunk, {"x": torch.from_numpy(frame), "small": torch.from_numpy(small)})
            seen[whole, chunk], of_small = (len(kept.looked_at) for kept in loan._chunks[chunk][1])
            assert of_small == WHOLE_BYTES
    assert seen[2, 1] == seen[-1, 1] == seen[-1, 2] == 50_000
    assert SAMPLE_BYTES <= seen[2, 2] < 2 * SAMPLE_BYTES


def test_what_goes_along_with_every_chunk_as_it_is_is_no_mistake():
    with torch.inference_mode():
        prompt = torch.ones(50_000)
    loan = lent()
    for k in range(3):
        loan.check({"prompt": prompt})
        loan.lend(k, {"prompt": prompt})
    loan.take_back(2)


def test_a_buffer_is_the_callers_again_when_its_chunk_has_been_taken_back():
    loan, ring = lent(-1), [torch.zeros(3), torch.zeros(3)]
    for k in range(6):
        ring[k % 2].fill_(k)
        loan.check({"x": ring[k % 2]})
        loan.lend(k, {"x": ring[k % 2]})
        loan.take_back(k - 1)
    assert list(loan._chunks) == [5]


def test_copies_are_nobody_elses_and_what_is_no_tensor_is_left_to_preflight():
    buffer = torch.ones(3)
    view, sparse = torch.arange(6.0).reshape(2, 3).t(), torch.eye(2).to_sparse()
    copied = copies({"x": buffer, "view": view, "sparse": sparse, "text": "no tensor"})
    buffer.zero_()
    assert copied["x"].tolist() == [1, 1, 1]
    assert copied["view"].is_contiguous()
    assert torch.equal(copied["view"], view)
    assert copied["sparse"] is sparse
    assert copied["text"] == "no tensor"
    nothing = {"text": "no tensor", "sparse": torch.eye(2).to_sparse(), "hollow": Hollow()}
    for whole in (0, -1):
        loan, small = lent(whole), torch.zeros(2)
        loan.lend(0, {**nothing, "x": small}, passed=False)
        loan.check(nothing)
        small.fill_(1)
        with pytest.raises(LocalProtocolError, match="'x' of chunk 0"):
            loan.take_back(0)


@pytest.mark.parametrize("whole", [0, -1])
def test_the_places_of_a_ring_that_is_one_tensor_are_told_apart(whole):
    """They share torch's count of writes."""
    loan, ring = lent(whole), torch.zeros(2, 5000)
    loan.lend(0, {"x": ring[0]})
    ring[1].fill_(1)
    loan.check({"x": ring[1]})
    loan.lend(1, {"x": ring[1]})
    ring[0].fill_(2)
    with pytest.raises(LocalProtocolError, match="'x' of chunk 0"):
        loan.check({"x": ring[0]})


class Hollow(torch.Tensor):
    """As a DTensor: it says that it is a dense tensor, and its address is nobody's."""

    @staticmethod
    def __new__(cls):
        return torch.Tensor._make_wrapper_subclass(cls, (4,))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        raise NotImplementedError


def test_a_tensor_without_memory_of_its_own_is_refused_with_the_remedy():
    table = SpecTable(torch.device("cpu"))
    table.specs_of({"x": torch.zeros(4)})
    with pytest.raises(LocalProtocolError, match="'x' was a Hollow, which has no memory") as caught:
        table.specs_of({"x": Hollow()})
    assert ".to_local() or .full_tensor()" in caught.value.check_first
    assert table.specs_of({"x": torch.nn.Parameter(torch.zeros(4))})
