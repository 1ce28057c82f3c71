"""What a message is: the plan of a chunk and the specs of its tensors."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ppwork.protocol.envelope import ITEM_SIZES, MAX_DIMS, MAX_NAME, ChunkPlan, Ids, TensorSpec

CONTEXT = (TensorSpec("context.frames", "float32", (2,)),)


@given(st.integers(1, 1000), st.booleans(), st.booleans())
def test_chunk_plan_of_choices_is_consistent(steps, recompute, reset_cache):
    """R4."""
    plan = ChunkPlan.of(steps, recompute=recompute, reset_cache=reset_cache)
    assert plan.problem(CONTEXT) is None
    assert plan.expected_calls == steps + (1 if recompute else 0)
    assert (plan.steps, plan.recompute, plan.reset_cache) == (steps, recompute, reset_cache)


@given(st.integers(-5, 5), st.integers(-5, 8), st.booleans())
def test_chunk_plan_has_a_problem_exactly_when_it_contradicts_itself(steps, calls, recompute):
    """R4, F03."""
    problem = ChunkPlan(steps, calls, recompute).problem(CONTEXT)
    assert (problem is None) == (steps >= 1 and calls == steps + recompute)


def test_chunk_plan_names_both_call_counts():
    """F03."""
    problem = ChunkPlan(4, 3).problem(())
    assert "expected 3 generator calls" in problem
    assert "4 steps and recompute=False make 4" in problem


def test_recompute_without_context_frames_is_a_problem():
    """F10."""
    plan = ChunkPlan.of(1, recompute=True)
    assert "no context frames" in plan.problem((TensorSpec("latents", "float32", (2,)),))
    assert "no context frames" in plan.problem(())
    assert plan.problem(CONTEXT) is None


@given(st.sampled_from(sorted(ITEM_SIZES)), st.lists(st.integers(0, 99), max_size=MAX_DIMS))
def test_spec_bytes_are_elements_times_item_size(dtype, shape):
    spec = TensorSpec("x", dtype, tuple(shape))
    assert spec.problem() is None
    assert spec.nbytes == math.prod(shape) * ITEM_SIZES[dtype]


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (TensorSpec("", "uint8", (1,)), "0 characters"),
        (TensorSpec("n" * (MAX_NAME + 1), "uint8", (1,)), f"{MAX_NAME + 1} characters"),
        (TensorSpec("q", "qint8", (1,)), "dtype 'qint8'"),
        (TensorSpec("m", "uint8", (1,), "meta"), "on 'meta'"),
        (TensorSpec("i", "uint8", (1,), "cuda:1"), "on 'cuda:1'"),
        (TensorSpec("d", "uint8", (1,) * (MAX_DIMS + 1)), f"{MAX_DIMS + 1} sizes"),
        (TensorSpec("neg", "uint8", (2, -1)), "shape"),
        (TensorSpec("big", "uint8", (1 << 48,)), "shape"),
    ],
    ids=lambda value: value.name if isinstance(value, TensorSpec) else None,
)
def test_spec_that_cannot_travel_says_why(spec, said):
    assert said in spec.problem()


def test_spec_at_the_edges_may_travel():
    assert TensorSpec("n" * MAX_NAME, "bool", (0,) * MAX_DIMS, "cuda").problem() is None
    assert TensorSpec("n", "bool", ()).nbytes == 1


def test_ids_give_their_facts_in_where_order():
    assert list(Ids(5, 3, 1).where().items()) == [("call_id", 5), ("chunk_index", 3), ("cache_epoch", 1)]
