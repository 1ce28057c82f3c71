"""The handshake of collectives on paper: records of one size, and how a difference is said."""

import sys

import pytest
import torch

from ppwork.errors import LocalProtocolError
from ppwork.protocol.envelope import Ids
from ppwork.protocol.topology import Role, Topology
from ppwork.records.difference import difference_of
from ppwork.records.ledger import LINES, RECORD_BYTES, CollectiveCall
from ppwork.worker.shared_calls import SharedCalls


@pytest.mark.parametrize(
    "call",
    [
        CollectiveCall(0, 1, "all_reduce float32[4, 8]"),
        CollectiveCall(2**62, 2**32 - 1, "all_reduce bfloat16[]"),
        CollectiveCall(7, 0),
        CollectiveCall(-1, 3, "all_reduce é"),
        CollectiveCall(3, 2, "all_reduce float32[4]", "my_stages.py:41: self.tp.all_reduce(é)"),
        CollectiveCall(3, 2, site="my_stages.py:41: self.tp.all_reduce(x)", digest=2**32 - 1),
        CollectiveCall(3, 2, digest=7, shapes="'mask' float32[17, 129]; 'y' int64[]"),
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


def test_callers_that_have_no_room_are_left_out_whole():
    site = "\n".join(["helpers.py:12: dist.all_reduce(x)", *(f"{'x' * 100}.py:{line}" for line in range(5))])
    call = CollectiveCall.from_bytes(CollectiveCall(0, 1, "barrier", site).to_bytes())
    assert call.line == "helpers.py:12: dist.all_reduce(x)"
    assert call.places == ("helpers.py:12", *(f"{'x' * 100}.py:{line}" for line in range(3)))


def compared(calls, ranks):
    """What is said of calls that these ranks are about to make."""
    return difference_of({rank: [call] for rank, call in zip(ranks, calls, strict=True)})


def at(count, line, rows=4, chunk_index=3, text="y = self.reduce(y)"):
    return CollectiveCall(chunk_index, count, f"all_reduce float32[{rows}]", f"my_stages.py:{line}: {text}")


def test_the_same_call_from_two_lines_is_no_difference_and_a_difference_has_both():
    here, there, odd = (at(2, line, rows) for rows, line in ((4, 41), (4, 44), (5, 47)))
    assert compared([here, there], (1, 2)) is None
    what, *_ = compared([here, there, odd, here], (1, 2, 3, 4))
    assert what.splitlines() == [
        "Rank 3 differs from ranks 1, 2 and 4 at collective 2 of chunk 3: "
        "rank 3 called all_reduce float32[5] (my_stages.py:47), "
        "ranks 1, 2 and 4 called all_reduce float32[4] (my_stages.py:41 and my_stages.py:44).",
        "  rank 3 at my_stages.py:47: y = self.reduce(y)",
        "  ranks 1 and 4 at my_stages.py:41: y = self.reduce(y)",
        "  rank 2 at my_stages.py:44: y = self.reduce(y)",
    ]
    ended = CollectiveCall(3, 1, site="my_stages.py:39: all_reduce(w)")
    what, *_ = compared([here, ended], (1, 2))
    assert what.splitlines()[::2] == [
        "Ranks 1 and 2 differ in chunk 3: rank 1 called all_reduce float32[4] as collective 2 "
        "(my_stages.py:41), rank 2 ended it after 1 collective (the last at my_stages.py:39).",
        "  rank 2, last at my_stages.py:39: all_reduce(w)",
    ]


def test_equal_calls_are_no_difference():
    assert compared([CollectiveCall(3, 1, "all_reduce float32[4]")] * 3, (1, 2, 3)) is None
    assert compared([CollectiveCall(3, 2)], (1,)) is None


@pytest.mark.parametrize(
    ("odd", "said", "ranks"),
    [
        ((2,), "Rank 2 differs from ranks 1 and 3 at", (2, 1, 3)),
        ((3,), "Rank 3 differs from ranks 1 and 2 at", (3, 1, 2)),
        ((2, 4), "Ranks 1 and 3 differ from ranks 2 and 4 at", (1, 3, 2, 4)),
        ((2, 3, 4), "Rank 1 differs from ranks 2, 3 and 4 at", (1, 2, 3, 4)),
    ],
)
def test_the_odd_one_out_is_named_first_and_all_of_them_are_told(odd, said, ranks):
    every = sorted(ranks)
    found = compared([at(2, 41, rows=5 if rank in odd else 4) for rank in every], every)
    assert found.what.startswith(said)
    assert found.ranks == ranks


def test_ranks_that_all_differ_are_one_subject():
    assert compared([at(2, 41, rows) for rows in (4, 5, 6)], (1, 2, 3)).what.startswith(
        "Ranks 1, 2 and 3 differ at"
    )


def test_of_calls_that_shift_against_each_other_it_is_said_which_rank_made_one_more():
    """Of a helper's alternating callers the one that was left out could be told, and was not."""
    lines = [52, 53] * 3
    usual = [at(count, line) for count, line in enumerate(lines, start=1)]
    left_out = [at(count, line) for count, line in enumerate([52, 52, 53, 52, 53], start=1)]
    ended = CollectiveCall(3, 5, site="my_stages.py:53: y = self.reduce(y)")
    seems = "It seems that rank 1 made one there that rank 2 did not make."
    assert seems in difference_of({1: usual, 2: [*left_out, ended]}).what
    other = [*left_out[:3], at(4, 44), at(5, 44), ended]  # not the same calls behind that place
    assert "It seems" not in difference_of({1: usual, 2: other}).what


def test_a_sum_more_of_the_same_shape_is_named_where_the_lines_part_and_not_where_it_showed():
    """The calls that were compared are the same innocent line on both."""
    usual = [at(1, 73), at(2, 73), CollectiveCall(3, 2, site="my_stages.py:73: y = self.reduce(y)")]
    odd = [at(1, 73), at(2, 76, text="extra"), at(3, 73)]
    what, check_first, ranks = difference_of({1: usual, 2: odd})
    sentence, *shown = what.splitlines()
    assert sentence == (
        "Ranks 1 and 2 differ at collective 2 of chunk 3: rank 1 called all_reduce float32[4] "
        "(my_stages.py:73), rank 2 called all_reduce float32[4] (my_stages.py:76). It seems that rank 2 made "
        "one there that rank 1 did not make. It showed later in chunk 3: rank 1 ended it after 2 collectives "
        "(the last at my_stages.py:73), rank 2 called all_reduce float32[4] as collective 3 "
        "(my_stages.py:73)."
    )
    assert shown == [
        "  rank 1 in chunk 3:",
        "    1 all_reduce float32[4] at my_stages.py:73: y = self.reduce(y)",
        "    2 all_reduce float32[4] at my_stages.py:73: y = self.reduce(y)",
        "    ended after 2 collectives",
        "  rank 2 in chunk 3:",
        "    1 all_reduce float32[4] at my_stages.py:73: y = self.reduce(y)",
        "    2 all_reduce float32[4] at my_stages.py:76: extra",
        "    3 all_reduce float32[4] at my_stages.py:73: y = self.reduce(y)",
    ]
    assert ranks == (1, 2)
    assert "only one rank knows" in check_first
    three = difference_of({1: usual, 2: odd, 3: usual})
    assert three.what.startswith(
        "Rank 2 differs from ranks 1 and 3 at collective 2 of chunk 3: rank 2 called"
    )
    assert "  ranks 1 and 3 in chunk 3:" in three.what


def by_helper(count, *callers, rows=4):
    at = "\n".join(["helpers.py:12: dist.all_reduce(x)", *callers])
    return CollectiveCall(3, count, f"all_reduce float32[{rows}]", at)


def test_of_a_common_helper_the_place_is_where_the_stacks_part():
    one, other = by_helper(2, "block.py:7", "stage.py:40"), by_helper(2, "block.py:7", "stage.py:44", rows=5)
    what, *_ = compared([one, other], (1, 2))
    assert what.splitlines()[1:] == [
        "  rank 1 at helpers.py:12: dist.all_reduce(x), called at block.py:7, called at stage.py:40",
        "  rank 2 at helpers.py:12: dist.all_reduce(x), called at block.py:7, called at stage.py:44",
    ]
    alike = compared([one, by_helper(2, "block.py:7", "stage.py:40", rows=5)], (1, 2)).what
    assert alike.splitlines()[1].endswith("dist.all_reduce(x), called at block.py:7"), "a helper's line alone"


def test_a_call_that_was_left_out_is_asked_for_at_the_earlier_line():
    calls = {1: [by_helper(1, "model.py:49", rows=4)], 2: [by_helper(1, "model.py:57", rows=6)]}
    check = difference_of(calls).check_first
    assert check.startswith(
        "does rank 2 leave out the call at model.py:49, or make a turn of a loop less there?"
    )
    same = difference_of({1: calls[1], 2: [by_helper(1, "model.py:49", rows=6)]}).check_first
    assert same.startswith("what makes the tensors differ between these ranks?")
    turns = [by_helper(count, "model.py:58") for count in (1, 2, 3)]
    ended = CollectiveCall(3, 2, site=turns[1].site)
    fewer = difference_of({1: turns, 2: [*turns[:2], ended]})
    assert fewer.check_first.startswith(
        "does a loop around helpers.py:12 or model.py:58 make as many turns on all ranks?"
    )
    assert "(the last at helpers.py:12, called at model.py:58)" in fewer.what


def test_a_sum_more_by_a_helper_is_named_with_its_caller_and_not_where_it_showed():
    usual = [by_helper(1, "stage.py:40"), by_helper(2, "stage.py:44"), CollectiveCall(3, 2)]
    odd = [by_helper(1, "stage.py:40"), by_helper(2, "stage.py:42"), by_helper(3, "stage.py:44")]
    sentence, *shown = difference_of({1: usual, 2: odd}).what.splitlines()
    assert sentence.startswith("Ranks 1 and 2 differ at collective 2 of chunk 3: rank 1 called all_reduce")
    assert "(helpers.py:12, called at stage.py:42)" in sentence
    assert shown[-2:] == [
        f"    {count} all_reduce float32[4] at helpers.py:12: dist.all_reduce(x), called at stage.py:{line}"
        for count, line in ((2, 42), (3, 44))
    ]
    # Ranks that come to the chunk by lines of their own have no place where they part.
    apart = [by_helper(1, "main.py:9"), by_helper(2, "main.py:9"), by_helper(3, "main.py:9")]
    said = difference_of({1: usual, 2: apart}).what
    assert said.startswith("Ranks 1 and 2 differ in chunk 3: rank 1 ended it after 2")


def test_of_many_calls_those_round_the_place_are_listed():
    usual = [at(count, 73) for count in range(1, 20)]
    odd = [at(count, 76 if count == 9 else 73) for count in range(1, 19)]
    shown = difference_of(
        {1: [*usual, at(20, 73)], 2: [*odd, at(19, 73), at(20, 73, rows=5)]}
    ).what.splitlines()
    assert [line.split(" ")[4] for line in shown if line.startswith("    ")] == [
        "...", "8", "9", "10", "11", "12", "13", "...", "20",
    ] * 2  # fmt: skip


def test_another_shape_names_the_ranks_and_both_sides():
    """F05."""
    same, odd = (
        CollectiveCall(3, 2, "all_reduce float32[4, 8]"),
        CollectiveCall(3, 2, "all_reduce float32[4, 9]"),
    )
    what, check_first, _ = compared([same, odd, same], (1, 2, 3))
    assert what == (
        "Rank 2 differs from ranks 1 and 3 at collective 2 of chunk 3: "
        "rank 2 called all_reduce float32[4, 9], ranks 1 and 3 called all_reduce float32[4, 8]."
    )
    assert "tensors differ" in check_first


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            CollectiveCall(3, 1),
            "in chunk 3: rank 1 called all_reduce float32[4] as collective 2, rank 2 ended it ",
        ),
        (
            CollectiveCall(4, 2, "all_reduce float32[4]"),
            ": rank 1 called all_reduce float32[4] as collective 2 of chunk 3, "
            "rank 2 called all_reduce float32[4] as collective 2 of chunk 4",
        ),
        (
            CollectiveCall(3, 3, "all_reduce float32[4]"),
            "in chunk 3: rank 1 called all_reduce float32[4] as collective 2, "
            "rank 2 called all_reduce float32[4] as collective 3",
        ),
    ],
)
def test_another_count_or_chunk_asks_for_the_flag_that_one_rank_knows(other, said):
    """F05 and F12: also when the tensors happen to be the same."""
    what, check_first, _ = compared([CollectiveCall(3, 2, "all_reduce float32[4]"), other], (1, 2))
    assert said in what
    assert "only one rank knows" in check_first


class MeshGroups(dict):
    """As far as ``SharedCalls`` looks at a rank's groups."""

    topology = Topology(2)

    def __init__(self, rank):
        super().__init__(tp_pg="tp_pg")
        self.rank, self.role = rank, Role.LEADER


def test_a_peer_that_goes_on_while_it_is_compared_is_told_by_the_lines_that_were(tmp_path, monkeypatch):
    """Asynchronous calls wait for nobody: by then its ring may have others in the place."""

    def all_reduce(shared, tensor, op=None):
        shared.call("tp_pg", sys._getframe())

    ours, theirs = (SharedCalls(MeshGroups(rank), tmp_path) for rank in (1, 2))
    for shared in (theirs, ours):
        shared.begin(Ids(0, 0, 0))
    all_reduce(theirs, torch.ones(5))
    ring = ours._others[2]
    read = ring.calls

    def calls_later():
        for _ in range(LINES):
            theirs._show(b"")
        return read()

    theirs._others.clear()
    monkeypatch.setattr(ring, "calls", calls_later)
    with pytest.raises(LocalProtocolError, match="Ranks 1 and 2 differ at collective 1 of chunk 0") as caught:
        all_reduce(ours, torch.ones(4))
    assert "rank 1 called all_reduce float32[4]" in caught.value.what
    assert "rank 2 called all_reduce float32[5]" in caught.value.what
    for shared in (theirs, ours):
        shared.close()
