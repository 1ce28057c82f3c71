"""The comparison of the mesh's tensors with those of one process."""

import pytest
import torch

from ppwork.worker.reference import difference, returned_apart
from ppwork.worker.summary import real

INF = float("inf")
LARGE = torch.tensor([1e4, -3.0])


@pytest.mark.parametrize(
    ("computed", "returned", "allowed", "told"),
    [
        (LARGE, LARGE + torch.tensor([0.5, 0.0]), 1e-4, ""),
        (LARGE, LARGE + torch.tensor([0.0, 2.0]), 1e-4, "differed by 2 of at most 10000, first in chunk 4"),
        (
            LARGE,
            LARGE + torch.tensor([0.5, 0.0]),
            0.0,
            "differed by 0.5 of at most 10000.5",
        ),
        (torch.zeros(2), torch.full((2,), 2e-4), 1e-4, "differed by 0.0002 of at most 0.0002"),
        (torch.zeros(2), torch.zeros(3), 1e-4, "differed in shape or by a NaN"),
        (torch.zeros(2), torch.tensor([0.0, float("nan")]), 1.0, "differed in shape or by a NaN"),
        (torch.tensor([-INF, float("nan"), 1.0]), torch.tensor([-INF, float("nan"), 1.0]), 0.0, ""),
        (torch.tensor([-INF]), torch.tensor([INF]), 1.0, "differed in shape or by a NaN"),
        (torch.empty(0), torch.empty(0), 0.0, ""),
        (torch.tensor([True]), torch.tensor([False]), 1e-4, "(bool) differed by 1"),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 3j]), 1e-4, "(complex64) differed by 1 of"),
        (torch.tensor([3]).to(torch.float8_e4m3fn), torch.tensor([3]).to(torch.float8_e4m3fn), 0.0, ""),
    ],
)
def test_the_first_tensor_that_differs_is_named(computed, returned, allowed, told):
    """The tolerance is a part of the largest value: nobody chose the unit of a tensor that is not emitted."""
    same = {"same": torch.ones(2)}
    said = returned_apart({**same, "x": computed}, {**same, "x": real(returned)}, allowed, 4)
    assert told in said
    assert bool(told) == said.startswith("`x` ")


def test_a_tensor_that_only_one_of_both_has_is_named():
    x = {"x": torch.ones(1)}
    assert returned_apart(x, {}, 1.0, 0) == "`x` of chunk 0 came in one process only"
    assert returned_apart({}, x, 1.0, 0) == "`x` of chunk 0 came from the mesh only"


def test_a_nan_in_an_output_is_a_difference_also_where_both_have_it():
    """A pipeline that emits NaNs is verified by nobody."""
    both = torch.tensor([float("nan"), 1.0])
    assert difference(both, both) == INF
    assert difference(both, both, equal_nan=True) == 0.0
