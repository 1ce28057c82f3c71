"""Where the ranks of a program stand, on made-up calls: who waits for whom, and what does not fit."""

from __future__ import annotations

import pytest
from made_calls import FLOATS, MadeCalls

from ppwork.diagnosis.program_waits import program_waits
from ppwork.diagnosis.stacks import Frame, Stack
from ppwork.records.calls import CallPart, read_calls
from ppwork.timeline.meetings import Meetings

ONE = CallPart(**FLOATS)


@pytest.fixture
def made(tmp_path):
    return MadeCalls(tmp_path, 3)


def end_of(made: MadeCalls):
    return program_waits(Meetings(read_calls(made.folder)))


def test_a_program_that_came_to_its_end_stands_nowhere(made):
    for rank in range(3):
        made.call(rank, "barrier", 0, 1)
        made.left(rank, 2)
    assert end_of(made) is None


def test_who_waits_for_nobody_is_named_first(made):
    made.call(0, "all_reduce", 0, None, ONE, line=4)
    handle = made.recv(1, 0, 0, 1, name="irecv", lent=True)
    made.wait(1, handle, 2, None, line=6)
    made.call(2, "barrier", 0, 1, line=2)
    end = end_of(made)
    waits = {wait.rank: wait.waits_for for wait in end.waits}
    # Rank 2's barrier met the all_reduce of rank 0: they parted there.
    assert waits == {0: (1, 2), 1: (0,), 2: ()}
    assert end.waits[1].call == "wait for irecv float32[4] from 0 at prog.py:6"
    assert end.mismatches == (
        "Collective 1 of default_pg: rank 0 all_reduce float32[4] (prog.py:4), rank 2 barrier (prog.py:2).",
    )


def test_a_rank_that_is_killed_in_its_own_code_is_said_to_be_there(made):
    made.call(0, "barrier", 0, None, line=3)
    made.call(1, "barrier", 0, None, line=3)
    end = end_of(made)
    assert end.sentence == "Rank 2 waits for nobody: in code of its own, before its first call."
    assert end.check_first.startswith("why rank 2 did not come: ")
    assert "a lock, queue or file that it waits for" in end.check_first  # torch sees none of them


def test_a_rank_that_is_still_at_an_import_needs_time_and_no_other_call(made):
    made.call(0, "barrier", 0, None, line=3)
    made.call(1, "barrier", 0, None, line=3)
    inside = Frame("<frozen importlib._bootstrap>", 1176, "_find_and_load")
    end = end_of(made).at_lines({2: Stack((Frame("/srv/me/prog.py", 3, "<module>"), inside), "")})
    assert end.sentence == "Rank 2 waits for nobody: still at an import at prog.py:3, before its first call."
    assert end.check_first == "a longer limit: rank 2 had not come out of its imports"


def test_a_rank_that_ended_with_an_exception_has_it(made):
    for rank in (0, 1):
        made.call(rank, "barrier", 0, 5, line=3, error="RuntimeError: Connection closed by peer")
        made.left(rank, 6, error="RuntimeError: Connection closed by peer")
    made.left(2, 1, error="ValueError: boom")
    end = end_of(made)
    assert end.sentence == (
        "Rank 2 waits for nobody: its program ended with ValueError: boom, before its first call."
    )
    assert [wait.waits_for for wait in end.waits] == [(2,), (2,), ()]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"dtype": "float64", "shape": (4,), "size": 32}, "rank 1 all_reduce float64[4]"),
        ({"dtype": "float32", "shape": (8,), "size": 32}, "rank 1 all_reduce float32[8]"),
    ],
)
def test_ranks_that_reduce_different_tensors_are_told_apart(made, other, said):
    for rank in (0, 2):
        made.call(rank, "all_reduce", 0, None, ONE)
    made.call(1, "all_reduce", 0, None, CallPart(**other))
    (mismatch,) = end_of(made).mismatches
    assert mismatch == f"Collective 1 of default_pg: ranks 0 and 2 all_reduce float32[4], {said}."


def test_two_waits_for_one_function_have_their_numbers_where_the_ranks_parted(made):
    """Rank 0 reduces second and rank 1 first: both wait for an all_reduce, and it is not one call."""
    orders = (("broadcast", "all_reduce"), ("all_reduce", "broadcast"), ("broadcast", "all_reduce"))
    for rank, order in enumerate(orders):
        handles = {name: made.call(rank, name, n, n, ONE, lent=True) for n, name in enumerate(order)}
        made.wait(rank, handles["all_reduce"], 2, None, line=14)
    assert [wait.call for wait in end_of(made).waits] == [
        f"wait for all_reduce float32[4] #{number} at prog.py:14" for number in (2, 1, 2)
    ]


def test_shapes_may_differ_where_they_hold_as_much(made):
    made.call(0, "broadcast", 0, None, ONE)
    made.call(1, "broadcast", 0, None, CallPart(dtype="float32", shape=(2, 2), size=16))
    assert end_of(made).mismatches == ()


@pytest.mark.parametrize(
    ("sent", "received", "said"),
    [
        ({"tag": 3}, {"tag": 4}, "Rank 0 sent tag 3 (prog.py:1), rank 1 awaited tag 4 (prog.py:1)."),
        ({}, {"group": "group 1"},
         "Rank 0 sent on default_pg (prog.py:1), rank 1 awaited on group 1 (prog.py:1)."),
    ],
)  # fmt: skip
def test_a_message_that_misses_its_receive_is_named_with_both(made, sent, received, said):
    made.send(0, 1, 0, 1, **sent)
    made.recv(1, 0, 0, None, **received)
    assert end_of(made).mismatches == (said,)


def test_what_nobody_received_is_said_also_of_a_program_that_ended(made):
    made.send(0, 1, 0, 1, line=8)
    for rank in range(3):
        made.left(rank, 2)
    end = end_of(made)
    assert end.sentence == "Nobody received what rank 0 sent: send float32[4] to 1 at prog.py:8."
    assert end.waits == ()


def test_a_message_of_another_length_is_told_with_both_ends(made):
    made.call(0, "send", 0, 1, CallPart("send", 1, **FLOATS), line=2)
    made.call(1, "recv", 0, 1, CallPart("recv", 0, dtype="float32", shape=(2,), size=8), line=9)
    assert end_of(made).mismatches == (
        "A send of float32[4] (rank 0, prog.py:2) met a receive of float32[2] (rank 1, prog.py:9).",
    )


def rank_0_awaits_the_mesh(made: MadeCalls, *, sends: bool = False):
    """All ranks make the group of ranks 1 and 2, and rank 0 waits in vain for a result of rank 1."""
    for rank in range(3):
        made.call(rank, "new_group", 0, 1, op="[1, 2]", makes="1", line=7)
    if sends:
        made.send(0, 1, 1, 2, line=9)
    made.recv(0, 1, 2, 3002, line=14, error="RuntimeError: Timed out waiting 3000ms for recv operation")


@pytest.mark.parametrize("sends", [False, True])
def test_a_collective_that_names_no_group_is_told_before_its_victims(made, sends):
    """Rank 0 has no part in the group that was meant: its receive waits, and is not to blame.

    Nor is it the cause that nobody receives what rank 0 sent ahead.
    """
    rank_0_awaits_the_mesh(made, sends=sends)
    for rank in (1, 2):
        made.call(rank, "all_reduce", 2, 3002, ONE, line=11, error="RuntimeError: Timed out waiting 3000ms")
    for rank in range(3):
        made.left(rank, 3003, error="RuntimeError: Timed out waiting")
    end = end_of(made)
    assert end.sentence == (
        "Ranks 1 and 2 were in all_reduce on the default group (prog.py:11), which rank 0 did not call: it "
        "was in recv, waiting for rank 1 (prog.py:14)."
    )
    assert end.cause.check_first == "is `group=` missing at prog.py:11?"


def test_a_rank_that_names_no_group_for_a_sum_of_the_mesh_is_told_with_both(made):
    """Rank 0 waits for a rank of the mesh, which is in the sum that was meant."""
    rank_0_awaits_the_mesh(made)
    made.call(
        1,
        "all_reduce",
        2,
        3002,
        ONE,
        line=12,
        group="group 1",
        error="RuntimeError: Connection closed by peer",
    )
    made.call(2, "all_reduce", 2, 3002, ONE, line=11, error="RuntimeError: Timed out waiting 3000ms")
    for rank in range(3):
        made.left(rank, 3003, error="RuntimeError: Timed out waiting")
    end = end_of(made)
    assert end.sentence == (
        "Rank 2 was in all_reduce on the default group (prog.py:11), and rank 1 in all_reduce on group 1 "
        "(prog.py:12): they wait for each other."
    )
    assert end.cause.check_first.startswith("is `group=` missing at prog.py:11?")


def test_without_other_groups_no_group_was_meant(made):
    made.recv(0, 1, 2, 3002, line=14, error="RuntimeError: Timed out waiting 3000ms for recv operation")
    for rank in (1, 2):
        made.call(rank, "all_reduce", 2, 3002, ONE, line=11, error="RuntimeError: Timed out waiting 3000ms")
    assert end_of(made).cause is None


CLOSED = "RuntimeError: [pair.cc:553] Connection closed by peer [127.0.0.1]:403"


@pytest.mark.parametrize(
    ("called", "how"),
    [
        (0, "while rank 0 was in recv (prog.py:11), waiting for it."),
        (12, "before rank 0 called recv (prog.py:11), which waits for rank 1."),
    ],
)
def test_who_destroys_its_groups_closes_the_connections_before_it_ends(made, called, how):
    made.recv(0, 1, called, 14, line=11, error=CLOSED)
    made.call(1, "destroy_process_group", 3, 23, line=16)
    made.left(0, 15, error=CLOSED)
    for rank in (1, 2):
        made.left(rank, 24)
    end = end_of(made)
    assert end.sentence == f"Rank 1 closed its connections in destroy_process_group (prog.py:16) {how}"
    assert end.cause.rank == 1


@pytest.mark.parametrize(
    ("destroys", "how"),
    [(True, "closed its connections in destroy_process_group (prog.py:16)"), (False, "came to its end")],
)
def test_who_ends_while_another_still_connects_to_it_is_the_cause_of_what_that_one_did_not_do(
    made, destroys, how
):
    error = f"RuntimeError: Gloo connectFullMesh failed with {CLOSED}"
    for rank in range(3):
        made.call(rank, "init_process_group", 0, 9 if rank == 1 else 2, line=4, error=error * (rank == 1))
    made.send(0, 1, 3, 10, line=11, error=CLOSED)
    if destroys:
        made.call(2, "destroy_process_group", 3, 4, line=16)
    made.left(2, 5)
    for rank in (0, 1):
        made.left(rank, 12, error=error)
    end = end_of(made)
    assert end.sentence == (
        f"Rank 2 {how} while rank 1 was still in init_process_group (prog.py:4), connecting to it."
    )
    assert end.cause.rank == 2
    assert "`dist.barrier()` of all ranks after init_process_group" in end.cause.check_first


def test_a_start_that_fails_on_its_own_is_no_fault_of_who_ended_well_later(made):
    error = f"RuntimeError: Gloo connectFullMesh failed with {CLOSED}"
    for rank in range(3):
        made.call(rank, "init_process_group", 0, 9 if rank == 1 else 2, line=4, error=error * (rank == 1))
    made.left(1, 10, error=error)
    for rank in (0, 2):
        made.left(rank, 20)
    assert end_of(made).cause is None


def test_a_rank_that_ends_without_destroying_has_not_closed_them_so(made):
    made.recv(0, 1, 0, 14, line=11, error=CLOSED)
    made.left(0, 15, error=CLOSED)
    for rank in (1, 2):
        made.left(rank, 3)
    assert end_of(made).cause is None


def test_a_rank_that_leaves_a_group_out_is_named_and_not_those_that_make_it(made):
    for rank in (0, 1):
        made.call(rank, "new_group", 0, None, line=3, op="[0, 1, 2]")
    made.call(2, "all_reduce", 0, None, ONE, line=5)
    assert end_of(made).sentence == (
        "All ranks have to make a group, and rank 2 did not: ranks 0 and 1 in new_group [0, 1, 2] "
        "(prog.py:3), rank 2 in all_reduce float32[4] (prog.py:5)."
    )


def test_groups_with_other_members_are_a_mismatch_and_those_of_members_alone_are_not(made):
    for rank, op in enumerate(("[0, 1]", "[1, 2]", "[1, 2]")):
        made.call(rank, "new_group", 0, None, line=3, op=op)
    assert end_of(made).sentence == (
        "In their first new_group the ranks differ: rank 0 makes [0, 1], ranks 1 and 2 make [1, 2]."
    )


def test_a_group_that_its_members_alone_make_misses_nobody(made):
    for rank in (0, 1):
        made.call(rank, "new_group", 0, 1, line=3, op="only [0, 1]")
    for rank in range(3):
        made.call(rank, "new_group", 2, 3, line=4, op="[0, 1, 2]")
        made.left(rank, 4)
    assert end_of(made) is None


def test_a_circle_names_its_own_ranks_and_what_each_stands_in(made):
    made.recv(0, 1, 0, None, line=4)
    made.recv(1, 0, 0, None, line=4)
    made.call(2, "barrier", 0, None, line=8)
    end = end_of(made)
    assert end.circle == (0, 1)
    assert end.sentence == (
        "Ranks 0 and 1 wait for each other: rank 0 in recv float32[4] from 1 at prog.py:4, rank 1 in recv "
        "float32[4] from 0 at prog.py:4."
    )
    assert "which message was never sent" in end.check_first


def test_two_groups_in_two_orders_are_a_circle_that_names_the_groups(made):
    made.call(0, "all_reduce", 0, None, ONE, line=4, group="group 1")
    for rank in (1, 2):
        made.call(rank, "all_reduce", 0, None, ONE, line=4)
    assert "rank 0 in all_reduce float32[4] on group 1" in end_of(made).sentence


def test_a_message_to_one_and_a_receive_from_another_are_said_together(made):
    made.send(0, 1, 0, None, line=4)
    made.recv(1, 2, 0, None, line=6)
    assert end_of(made).sentence == "Rank 0 sent to rank 1 (prog.py:4), rank 1 awaited rank 2 (prog.py:6)."


def test_a_handle_that_nobody_kept_is_named_where_its_receiver_stands(made):
    made.send(0, 1, 0, 1, name="isend", lent=True, line=4)
    made.recv(1, 0, 0, None, line=6)
    assert end_of(made).sentence == (
        "Rank 0 never waited for its isend (prog.py:4), and rank 1 did not receive it (prog.py:6): was the "
        "handle kept?"
    )


def test_an_operator_and_a_function_that_do_the_same_meet(made):
    made.call(0, "c10d::allreduce_", 0, 1, ONE)
    for rank in (1, 2):
        made.call(rank, "all_reduce", 0, 1, ONE, op="SUM")
    for rank in range(3):
        made.left(rank, 2)
    assert end_of(made) is None


def test_a_rank_that_came_after_the_first_had_given_up_stood_in_its_own_code(made):
    """A lock, a slow disk: it called send when the receiver had left, and nothing of that was a cause."""
    for rank in range(3):
        made.call(rank, "barrier", 0, 1, line=3)
    made.recv(0, 1, 2, 3002, line=8, error="RuntimeError: Timed out waiting 3000ms for recv operation")
    made.left(0, 3003, error="RuntimeError: Timed out waiting")
    made.send(1, 0, 3005, 3006, line=11, error="RuntimeError: [pair.cc:553] Connection closed by peer")
    made.left(1, 3007, error="RuntimeError: Connection closed by peer")
    made.left(2, 5)
    end = end_of(made)
    assert end.mismatches == ()
    assert end.sentence == "Rank 1 waits for nobody: in code of its own, after barrier at prog.py:3."
    assert end.rank == 1


def test_a_circle_of_messages_that_would_meet_later_is_no_wrong_peer(made):
    made.recv(0, 2, 0, None, line=4)
    made.send(1, 0, 0, None, line=6)
    made.recv(2, 1, 0, None, line=8)
    end = end_of(made)
    assert end.mismatches == ()
    assert end.circle == (0, 1, 2)
    assert end.sentence.startswith("Ranks 0, 1 and 2 wait for each other: rank 0 in recv float32[4] from 2")


def test_a_wrong_source_is_told_also_where_a_collective_closes_the_circle(made):
    made.send(0, 1, 0, None, line=4)
    made.recv(1, 2, 0, None, line=6)
    made.call(2, "barrier", 0, None, line=8)
    assert end_of(made).sentence == "Rank 0 sent to rank 1 (prog.py:4), rank 1 awaited rank 2 (prog.py:6)."


def test_a_lost_message_is_named_although_its_sender_stands_elsewhere(tmp_path):
    made = MadeCalls(tmp_path, 2)
    lost = made.send(0, 1, 0, 1, name="isend", lent=True, line=5)
    made.drop(0, lost, 2)
    kept = made.send(0, 1, 3, 4, name="isend", lent=True, line=6)
    made.wait(0, kept, 5, None, line=8)
    made.recv(1, 0, 9, None, line=12)
    end = program_waits(Meetings(read_calls(tmp_path)))
    assert end.sentence == (
        "Rank 0 let go of the handle of the first isend (prog.py:5) and waits for the second only "
        "(prog.py:8): the message went with the handle, and rank 1 waited in vain (prog.py:12)."
    )
    assert end.check_first.startswith("keep the handle until its wait")


def test_advice_on_a_circle_is_by_what_its_ranks_stand_in(tmp_path):
    advice = {}
    for name, calls in {"both receive": ("recv", "recv"), "both send": ("send", "send"),
                        "one is at a barrier": ("barrier", "recv")}.items():  # fmt: skip
        made = MadeCalls(tmp_path / name, 2)
        for rank, call in enumerate(calls):
            if call == "barrier":
                made.call(rank, call, 0, None)
            else:
                getattr(made, call)(rank, 1 - rank, 0, None)
        end = program_waits(Meetings(read_calls(tmp_path / name)))
        assert end.circle == (0, 1)
        advice[name] = end.check_first
    assert "which message was never sent" in advice["both receive"]
    assert "which of these ranks should go first" in advice["both send"]
    assert "leave out" in advice["one is at a barrier"]


def test_ranks_that_wait_for_nobody_are_sent_to_their_own_code(made):
    for rank in range(3):
        made.call(rank, "barrier", 0, 1)
    end = end_of(made)
    assert end.sentence.startswith("Rank 0 waits for nobody: in code of its own, after barrier")
    assert end.check_first.startswith("what each does there: long work, a loop")
