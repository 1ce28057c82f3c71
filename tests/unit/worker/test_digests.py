"""Digests: the same for the same bytes, another for any other, and how a difference is said."""

import re
import struct
import zlib
from types import SimpleNamespace

import pytest
import torch

from ppwork.protocol.envelope import Ids
from ppwork.records.ledger import SHAPES_BYTES, packed
from ppwork.runtime.tensors import digest_of
from ppwork.stage import Result
from ppwork.worker import digests
from ppwork.worker.digests import (
    compare_results,
    described,
    differing_shapes,
    differing_tensors,
    sampled,
    summed,
    tell_apart,
)
from ppwork.worker.tally import NO_RESULT


def test_the_digest_is_that_of_the_bytes_in_row_major_order_also_of_a_view():
    """Stable: it must be the same in every process, so nothing of Python's salted hash is in it."""
    tensor = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    assert digest_of(tensor) == zlib.crc32(struct.pack("<4f", 1, 2, 3, 4))
    assert digest_of(tensor.t()) == zlib.crc32(struct.pack("<4f", 1, 3, 2, 4))


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.bfloat16, torch.float8_e4m3fn, torch.complex64]
)
def test_one_bit_anywhere_changes_the_digest(dtype):
    raw = torch.zeros(1024, dtype=torch.uint8)
    whole = raw.view(dtype)
    before = digest_of(whole)
    for place in (0, 511, 1023):
        raw[place] ^= 1
        assert digest_of(whole) != before
        raw[place] ^= 1
    assert digest_of(whole) == before


def test_empty_and_scalar_tensors_have_a_digest():
    assert digest_of(torch.empty(0, 3)) == 0
    assert digest_of(torch.tensor(7, dtype=torch.int16)) == zlib.crc32(struct.pack("<h", 7))


def test_dtype_and_shape_stand_beside_it():
    tensor = torch.zeros(2, 3)
    assert described(tensor) == f"float32[2, 3] {digest_of(tensor):08x}"
    assert described(tensor) != described(tensor.reshape(3, 2))


def test_ranks_with_different_tensors_are_named_on_both_sides_tensor_by_tensor():
    """F11."""

    def sums(*values, length=4):
        return b"".join(
            summed(name, torch.full((length,), float(each)))
            for name, each in zip("abc", values, strict=False)
        )

    every = [sums(1, 2, 3), sums(1, 9, 3), sums(1, 8, 4)]
    assert differing_tensors([sums(2), sums(1)], (1, 2)) == ["ranks 1 and 2 differ in 'a'"]
    assert differing_tensors([sums(2), sums(1), sums(1), sums(3)], (1, 2, 3, 4)) == [
        "rank 1, rank 4, ranks 2 and 3 differ in 'a'"
    ]
    assert differing_tensors(every, (1, 2, 3)) == [
        "ranks 1, 2 and 3 differ in 'b'",
        "rank 3 differs from ranks 1 and 2 in 'c'",
    ]
    shapes = [sums(1), sums(1, length=3), sums(1)]
    assert differing_tensors(shapes, (1, 2, 3)) == [
        "rank 2 differs from ranks 1 and 3 in 'a': float32[3] and float32[4]"
    ]
    long = "a name of more than sixty letters that says all there is to say of this"
    alike, other = (b"".join(summed(name, torch.ones(4)) for name in ("a", "b", long + end)) for end in "xy")
    assert differing_tensors([alike, other], (1, 2)), "they part behind the sixtieth"
    names = [summed("x", torch.ones(4)), summed("y", torch.ones(4)), summed("x", torch.ones(4))]
    assert differing_tensors(names, (1, 2, 3)) == [
        "rank 2 differs from ranks 1 and 3 in a tensor's name: 'y' and 'x'"
    ]


def test_a_sample_of_results_that_drift_apart_is_another_one_and_of_what_has_no_bytes_name_and_shape_count():
    """Large or small, one tensor or the last of several; a rank that says nothing is compared with nobody."""
    for numbers in (3, 100_000):
        one = {"a": torch.zeros(2), "b": torch.linspace(0, 1, numbers)}
        assert sampled(one) == sampled({name: tensor.clone() for name, tensor in one.items()}) != NO_RESULT
        assert sampled(one) != sampled({**one, "b": one["b"] * 1.0001 + 1e-6})
        assert sampled(one) != sampled({"a": one["a"], "c": one["b"]}), "another name"
        assert sampled(one) != sampled({"a": one["a"]}), "one is missing"
    assert sampled({}) == NO_RESULT
    shapes = sampled({"x": torch.ones(3, 2), "n": None, "y": torch.tensor(1)})[1]
    assert re.fullmatch(r"'x' float32\[3, 2\]#[0-9a-f]{4}; 'y' int64\[\]#[0-9a-f]{4}", shapes)
    assert sampled({"x": torch.ones(3, 2).t(), "m": torch.ones(2, device="meta"), "n": None}) == sampled(
        {"x": torch.zeros(3, 2).t(), "m": torch.zeros(2, device="meta"), "n": None}
    )


@pytest.mark.parametrize(
    ("theirs", "said"),
    [
        ("'x' float32[3]; 'y' int64[]", "rank 1 returned 'x' float32[4], rank 2 returned 'x' float32[3]"),
        ("'x' float32[4]", "rank 1 returned 'y' int64[], rank 2 returned no such tensor"),
        (
            "'y' int64[]; 'x' float32[4]",
            "rank 1 returned 'x' float32[4] and 'y' int64[], rank 2 returned 'y' int64[] and 'x' float32[4]",
        ),
    ],
    ids=["shape", "one is missing", "order"],
)
def test_tensors_of_other_shapes_are_named_with_both_and_those_that_are_alike_are_not(theirs, said):
    assert differing_shapes({1: "'x' float32[4]; 'y' int64[]", 2: theirs}) == said


class Shared:
    """What ``tell_apart`` reads of a comparison: rank 2 and its own shapes."""

    def __init__(self, tensors):
        self.rank, self.told = 2, set()
        self.shapes = packed(sampled(tensors)[1], SHAPES_BYTES).decode()


def apart(mine, theirs):
    """What rank 2 says of a chunk for which rank 1 returned something else."""
    said = []
    recorder = SimpleNamespace(instant=lambda _, ids, text: said.append(text))
    tell_apart(Shared(mine), Ids(3, 3, 0), {1: Shared(theirs).shapes}, recorder)
    return said[0]


def test_the_tensor_whose_values_differ_is_named():
    """ "What rank 2 returned" sent its reader to print what he had in his hands."""
    mine = {"scores": torch.ones(3), "win": torch.ones(1)}
    said = "a sample of 'scores' that rank 2 returned is not what rank 1 returned"
    assert apart(mine, {**mine, "scores": torch.zeros(3)}) == said
    said = "rank 1 returned 'scores' float32[2], rank 2 returned 'scores' float32[3]"
    assert apart(mine, {**mine, "scores": torch.ones(2)}) == said


def test_of_more_tensors_than_a_record_has_room_for_the_first_are_named_and_of_a_later_one_is_none():
    many = {f"layer {n}": torch.ones(3, 1000 + n) for n in range(20)}
    said = apart(many, {**many, "layer 0": torch.zeros(3, 1000)})
    assert said == "a sample of 'layer 0' that rank 2 returned is not what rank 1 returned"
    said = apart(many, {**many, "layer 19": torch.zeros(3, 1019)})
    assert said == "a sample of what rank 2 returned is not what rank 1 returned"


def test_metadata_is_the_same_on_two_ranks_if_it_is_the_same_at_its_receiver(monkeypatch):
    """A dict has no order there, and a tuple arrives as a list."""
    seen = []
    monkeypatch.setattr(digests, "_compare", lambda *given: seen.append(digest_of(given[3]["metadata"])))
    groups = SimpleNamespace(device=torch.device("cpu"))
    for metadata in ({"a": 1, "b": (2, b"x")}, {"b": [2, b"x"], "a": 1}, {"a": 1, "b": [2, b"y"]}):
        compare_results(groups, Ids(0, 0, 0), Result({"y": torch.ones(1)}, metadata))
    one, same, other = seen
    assert one == same != other


def test_metadata_that_cannot_travel_is_left_to_the_send_which_names_it(monkeypatch):
    seen = []
    monkeypatch.setattr(digests, "_compare", lambda *given: seen.append(given))
    groups = SimpleNamespace(device=torch.device("cpu"))
    compare_results(groups, Ids(0, 0, 0), Result({"y": torch.ones(1)}, {"camera": object()}))
    assert seen
