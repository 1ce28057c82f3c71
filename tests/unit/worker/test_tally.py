"""What stage 1 has begun in a chunk: the budget of generator calls, and which chunks are compared."""

import pytest

from ppwork.errors import LocalProtocolError
from ppwork.protocol.envelope import ChunkPlan, Ids
from ppwork.worker.tally import Tally, counted


class Stage:
    """A generator that notes what entered it, and may call itself."""

    def __init__(self, extra=0):
        self.entered, self.extra = [], extra

    def recompute(self, context_frames):
        self.entered.append("recompute")

    def step(self, tensors, step_index, num_steps):
        self.entered.append("step")
        if self.extra:
            self.extra -= 1
            return self.step(tensors, step_index, num_steps)
        return tensors


class Slotted:
    __slots__ = ()

    def recompute(self, context_frames):
        pass

    @staticmethod
    def step(tensors, step_index, num_steps):
        return tensors


def begun(chunk_index=3, steps=2, *, recompute=False, reset=False, compare=2):
    tally = Tally(2, "follower", compare)
    tally.begin(
        Ids(chunk_index + 1, chunk_index, 0), ChunkPlan.of(steps, recompute=recompute, reset_cache=reset)
    )
    return tally


def test_a_call_too_many_is_refused_before_it_enters_the_generator():
    """F12 and R4."""
    tally = begun(steps=2)
    stage = counted(Stage, tally)()
    assert stage.step("x", 0, 2) == "x"
    stage.step("x", 1, 2)
    with pytest.raises(LocalProtocolError, match="generator call 3 of a chunk that has 2") as caught:
        stage.step("x", 2, 2)
    assert caught.value.where == {
        "rank": 2,
        "role": "follower",
        "call_id": 4,
        "chunk_index": 3,
        "cache_epoch": 0,
    }
    assert stage.entered == ["step"] * 2
    assert tally.calls == 2


def test_a_stage_that_calls_its_own_step_makes_one_call_more():
    tally = begun(steps=1)
    stage = counted(Stage, tally)(extra=1)
    with pytest.raises(LocalProtocolError, match="was called as generator call 2"):
        stage.step("x", 0, 1)
    assert stage.entered == ["step"]


def test_recompute_counts_and_a_chunk_begins_from_zero():
    tally = begun(steps=1, recompute=True)
    stage = counted(Stage, tally)()
    stage.recompute({})
    stage.step("x", 0, 1)
    assert tally.calls == 2
    tally.collectives = 7
    tally.begin(Ids(5, 4, 0), ChunkPlan.of(1))
    assert (tally.calls, tally.collectives) == (0, 0)
    stage.step("x", 0, 1)
    with pytest.raises(LocalProtocolError, match="`recompute` was called"):
        stage.recompute({})


def test_between_chunks_nothing_is_counted_and_nothing_refused():
    tally = begun(steps=1, compare=-1)
    stage = counted(Stage, tally)()
    stage.step("x", 0, 1)
    tally.end()
    assert not tally.comparing
    stage.step("x", 0, 1)
    assert tally.calls == 1
    assert tally.where() == {"rank": 2, "role": "follower"}
    assert tally.call("all_reduce float32[1]").chunk_index == -1


def test_the_counted_class_passes_for_the_users_own():
    made = counted(Stage, begun())
    assert made.__name__ == "Stage"
    assert made.__module__ == __name__
    assert issubclass(made, Stage)
    assert made.calls_are_counted
    assert not hasattr(Stage, "calls_are_counted")


def test_slots_and_static_methods_are_counted_as_well():
    tally = begun(steps=1)
    stage = counted(Slotted, tally)()
    assert stage.step("x", 0, 1) == "x"
    with pytest.raises(LocalProtocolError):
        stage.step("x", 0, 1)


@pytest.mark.parametrize(
    ("compare", "chunk_index", "reset", "comparing"),
    [
        (2, 0, False, True),
        (2, 1, False, True),
        (2, 2, False, False),
        (2, 9, True, True),
        (0, 0, False, False),
        (0, 9, True, False),
        (-1, 10_000, False, True),
    ],
)
def test_plan_and_envelope_alone_say_which_chunks_are_compared(compare, chunk_index, reset, comparing):
    """R5: every mesh rank must come to the same answer."""
    assert begun(chunk_index, reset=reset, compare=compare).comparing is comparing


def test_of_many_cuts_the_first_are_compared_and_one_in_a_first_chunk_is_none_of_them():
    """Each exchange costs a collective: a recurrent stage with many cuts took three times as long."""
    tally = Tally(1, "leader", 2)
    compared = []
    for index in range(12):
        tally.begin(Ids(index, index, 0), ChunkPlan.of(1, reset_cache=index % 3 == 0))
        compared += [index] if tally.comparing else []
        tally.end()
    assert compared == [0, 1, 3, 6]


def test_a_method_that_the_stage_does_not_have_is_counted_as_well():
    class Short:
        def step(self, tensors, step_index, num_steps):
            return tensors

    tally = begun(steps=1, recompute=True)
    stage = counted(Short, tally)()
    stage.recompute({})
    stage.step("x", 0, 1)
    assert tally.calls == 2
