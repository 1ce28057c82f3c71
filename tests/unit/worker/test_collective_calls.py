"""The handshake of collectives on paper: records of one size, and how a difference is said."""

import pytest

from ppwork.records.ledger import RECORD_BYTES, CollectiveCall, compare_calls


@pytest.mark.parametrize(
    "call",
    [
        CollectiveCall(0, 1, "all_reduce float32[4, 8]"),
        CollectiveCall(2**62, 2**32 - 1, "all_reduce bfloat16[]"),
        CollectiveCall(7, 0),
        CollectiveCall(-1, 3, "all_reduce é"),
        CollectiveCall(3, 2, "all_reduce float32[4]", "my_stages.py:41: self.tp.all_reduce(é)"),
    ],
)
def test_a_call_comes_back_as_it_left_in_a_record_of_fixed_size(call):
    raw = call.to_bytes()
    assert len(raw) == RECORD_BYTES
    assert CollectiveCall.from_bytes(raw) == call


def test_a_long_call_is_cut_and_still_differs_where_it_was_cut():
    long = "all_reduce float32[" + ", ".join(["1000000"] * 12)
    one, other = (
        CollectiveCall.from_bytes(CollectiveCall(0, 1, long + end).to_bytes()) for end in ("1]", "2]")
    )
    assert len(one.to_bytes()) == RECORD_BYTES
    assert one != other
    assert one.operation.startswith("all_reduce float32[1000000")


def test_a_long_line_is_cut_between_two_characters():
    site = "my_stages.py:41: " + "é" * 200
    call = CollectiveCall.from_bytes(CollectiveCall(0, 1, "barrier", site).to_bytes())
    assert site.startswith(call.site)
    assert len(call.site) > 100


def test_the_same_call_from_two_lines_is_no_difference_and_a_difference_has_both():
    here, there, odd = (
        CollectiveCall(3, 2, f"all_reduce float32[{size}]", f"my_stages.py:{line}: all_reduce({name})")
        for size, line, name in ((4, 41, "x"), (4, 44, "y"), (5, 47, "z"))
    )
    assert compare_calls([here, there], (1, 2)) is None
    what, _ = compare_calls([here, there, odd, here], (1, 2, 3, 4))
    assert what.splitlines()[1:] == [
        "  ranks 1 and 4 at my_stages.py:41: all_reduce(x)",
        "  rank 2 at my_stages.py:44: all_reduce(y)",
        "  rank 3 at my_stages.py:47: all_reduce(z)",
    ]
    ended = CollectiveCall(3, 1, site="my_stages.py:39: all_reduce(w)")
    what, _ = compare_calls([here, ended], (1, 2))
    assert what.splitlines()[2] == "  rank 2, last at my_stages.py:39: all_reduce(w)"


def test_equal_calls_are_no_difference():
    assert compare_calls([CollectiveCall(3, 1, "all_reduce float32[4]")] * 3, (1, 2, 3)) is None
    assert compare_calls([CollectiveCall(3, 2)], (1,)) is None


def test_another_shape_names_the_ranks_and_both_sides():
    """F05."""
    same, odd = (
        CollectiveCall(3, 2, "all_reduce float32[4, 8]"),
        CollectiveCall(3, 2, "all_reduce float32[4, 9]"),
    )
    what, check_first = compare_calls([same, odd, same], (1, 2, 3))
    assert "ranks 1 and 3 called all_reduce float32[4, 8] as collective 2 of chunk 3" in what
    assert "rank 2 called all_reduce float32[4, 9] as collective 2 of chunk 3" in what
    assert "tensors differ" in check_first


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (CollectiveCall(3, 1), "rank 2 ended chunk 3 after 1 collective"),
        (
            CollectiveCall(4, 2, "all_reduce float32[4]"),
            "rank 2 called all_reduce float32[4] as collective 2 of chunk 4",
        ),
        (
            CollectiveCall(3, 3, "all_reduce float32[4]"),
            "rank 2 called all_reduce float32[4] as collective 3 of chunk 3",
        ),
    ],
)
def test_another_count_or_chunk_asks_for_the_flag_that_one_rank_knows(other, said):
    """F05 and F12: also when the tensors happen to be the same."""
    what, check_first = compare_calls([CollectiveCall(3, 2, "all_reduce float32[4]"), other], (1, 2))
    assert "rank 1 called all_reduce float32[4] as collective 2 of chunk 3" in what
    assert said in what
    assert "only one rank knows" in check_first
