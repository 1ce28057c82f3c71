"""What the command line's texts and numbers mean, and what is said of those that mean nothing."""

import pytest

from ppwork.cli.options import chunk_range, depth_of, halves_of, size_of
from ppwork.errors import PlanError
from ppwork.plan import SYNTHETIC_STAGE0, SYNTHETIC_STAGE1, Plan
from ppwork.workloads.times import synthetic


def test_depth_not_asked_for_is_left_to_the_plan():
    assert depth_of(None, None, None) == depth_of(None, 2, 1) == 1
    assert depth_of(3, None, None) == depth_of(3, 2, 1) == 3


@pytest.mark.parametrize("depth", [1, 2, 4])
def test_depth_beside_another_split_is_refused(depth):
    """Also 1, which a plan would take for not named."""
    with pytest.raises(PlanError, match=f"The depth was {depth}, but --d-in 2 and --d-out 1 make 3"):
        depth_of(depth, 2, 1)


def test_size_and_chunk_range_read_as_they_are_written():
    assert size_of("160x96") == size_of("160X96") == (160, 96)
    assert chunk_range("10:14") == (10, 14)
    assert chunk_range("") == (None, None)


@pytest.mark.parametrize("text", ["160", "x", "-1x5", "5x", "axb"])
def test_text_that_is_no_size_is_refused(text):
    with pytest.raises(PlanError, match="WxH"):
        size_of(text)


@pytest.mark.parametrize("text", ["5", ":", "5:", ":5", "5:4", "-1:3"])
def test_text_that_is_no_chunk_range_is_refused(text):
    with pytest.raises(PlanError, match="FIRST:LAST"):
        chunk_range(text)


def test_one_time_of_stage0_is_split_evenly():
    assert halves_of("30") == (15.0, 15.0)
    assert halves_of("20,10") == (20.0, 10.0)


@pytest.mark.parametrize("text", ["a", "", "1,2,3", "1,b"])
def test_text_that_is_no_times_is_refused(text):
    with pytest.raises(PlanError, match="ENCODE,DECODE"):
        halves_of(text)


TIMES = {"encode_ms": 20.0, "decode_ms": 10.0, "stage1_ms": 60.0, "payload_mb": 4.0, "jitter": 0.1}


def test_synthetic_keeps_the_rest_of_the_plan():
    plan = synthetic(Plan(seed=7, chunks=5), **TIMES)
    assert (plan.stage0, plan.stage1, plan.seed, plan.chunks) == (SYNTHETIC_STAGE0, SYNTHETIC_STAGE1, 7, 5)
    assert plan.options == TIMES


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("name", TIMES)
def test_synthetic_times_that_are_none_are_refused(name, value):
    with pytest.raises(PlanError, match=f"{name} = .*none of them negative"):
        synthetic(Plan(), **{**TIMES, name: value})
