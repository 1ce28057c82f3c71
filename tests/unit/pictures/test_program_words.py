"""Words in the picture of anybody's program: of causes, handles, roots, groups, and ends of processes."""

from __future__ import annotations

import pytest
from drawn_timelines import texts
from legible import assert_legible
from made_calls import FLOATS, MadeCalls
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle

import ppwork as pp
from ppwork.records.calls import CallPart

ONE = CallPart(**FLOATS)


def artists(picture: pp.Picture, kind: type) -> list[object]:
    return [patch for patch in picture.figure.axes[0].patches if isinstance(patch, kind)]


def test_what_closed_the_connection_points_at_the_call_that_broke(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.call(0, "all_reduce", 0, 20, ONE, line=4, error="RuntimeError: Connection closed by peer")
    made.left(0, 21, "RuntimeError: Connection closed by peer")
    made.call(1, "destroy_process_group", 10, 30)
    made.left(1, 31)
    picture = pp.pictures.program(tmp_path)
    said = texts(picture.figure)
    assert "closes its connections here" in said
    assert "closed the connection" in said
    assert "its program has ended" not in said
    (arrow,) = artists(picture, FancyArrowPatch)
    assert arrow.get_path().vertices[0][0] == pytest.approx(10, abs=0.2)
    assert_legible(picture.figure)


def test_a_wait_says_of_which_handle_it_is_and_whether_it_is_the_first(tmp_path):
    made = MadeCalls(tmp_path, 2)
    handles = [made.send(0, 1, n, n + 1, name="isend", lent=True, line=3 + n) for n in range(2)]
    for n, of in enumerate((*handles, handles[0])):
        made.wait(0, of, 100 * (n + 1), 100 * (n + 1) + 90)
        made.recv(1, 0, 100 * (n + 1), 100 * (n + 1) + 90) if n < 2 else None
    for rank in range(2):
        made.left(rank, 400)
    said = texts(pp.pictures.program(tmp_path).figure)
    assert {"1st wait isend 1", "wait of isend 2", "2nd wait isend 1", "isend 1"} <= set(said)
    assert any(text.startswith("An arrow goes from the start of the sending call") for text in said)


def test_a_root_a_call_of_no_member_and_lengths_that_differ_much_are_said(tmp_path):
    made = MadeCalls(tmp_path, 3)
    root = CallPart(peer=1, **FLOATS)
    made.call(0, "all_reduce", 0, 900, ONE, group="")
    made.call(0, "broadcast", 900, 2900, root)
    made.call(1, "broadcast", 2890, 2899, root)
    made.call(2, "broadcast", 900, 2900, root)
    for rank in range(3):
        made.left(rank, 3000)
    picture = pp.pictures.program(tmp_path)
    said = texts(picture.figure)
    assert "Rank 0 is not in the group of its all_reduce" in picture.finding
    assert {"not a member, does nothing", "call by a rank that is not in the group"} <= set(said)
    assert {"broadcast, root 1, 2.0 s", "broadcast, root, 9.0 ms"} <= set(said)


def test_a_collective_of_unequal_length_has_its_word_before_its_neighbour(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "barrier", 0, 5)
        made.call(rank, "broadcast", 5, 2000 if rank else 6, CallPart(peer=0, **FLOATS))
        made.left(rank, 2001)
    picture = pp.pictures.program(tmp_path)
    assert "broadcast, root, 1.0 ms" in texts(picture.figure)
    assert_legible(picture.figure)


def test_only_ranks_that_differ_are_hatched_and_the_first_such_call_is_said(tmp_path):
    made = MadeCalls(tmp_path, 3)
    for rank, name in enumerate(("all_reduce", "barrier", "barrier")):
        made.call(rank, name, 0, 3000, *([ONE] if rank == 0 else []), error="RuntimeError: Timed out", line=4)
        made.left(rank, 3001, "RuntimeError: Timed out")
    picture = pp.pictures.program(tmp_path)
    assert len([band for band in artists(picture, Polygon) if band.get_hatch()]) == 1
    assert len(artists(picture, Polygon)) == 2
    said = texts(picture.figure)
    assert (
        "Hatched: the first call of the default group is all_reduce on rank 0, barrier on ranks 1 and 2."
        in said
    )
    assert_legible(picture.figure)


def test_two_groups_whose_calls_are_crossed_are_told_apart_by_name(tmp_path):
    made = MadeCalls(tmp_path, 2)
    both = ("all_reduce", "broadcast")
    for rank in range(2):
        for n, name in enumerate(both if rank else both[::-1]):
            of = made.call(rank, name, 50 * n, 50 * n + 49, ONE, group="group 1", lent=True)
            made.call(rank, "barrier", 100 + 50 * n, 149 + 50 * n)
            made.wait(rank, of, 200 + n, 201 + n)
        made.left(rank, 300)
    picture = pp.pictures.program(tmp_path)
    said = texts(picture.figure)
    assert {"broadcast group 1 #1", "barrier default #1", "wait"} <= set(said)
    assert any(text.startswith("Hatched: the first call of group 1 is broadcast on rank 0") for text in said)
    apart = [band.get_xy()[:, 0] for band in artists(picture, Polygon) if band.get_hatch()]
    assert [(min(x), max(x)) for x in apart] == [(0, 49), (50, 99)]  # the calls, and not until their waits
    alone = texts(pp.pictures.program(tmp_path, until_ms=95).figure)
    assert {"broadcast #1", "all_reduce #1"} <= set(alone), "only one group is drawn: its numbers tell"


def test_a_rank_whose_process_ended_is_drawn_no_longer_also_where_a_thread_was_in_a_call(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.recv(0, 1, 0, None, line=4)
    made.call(0, "barrier", 0, 50, error="RuntimeError: Timed out", thread="Thread-1 (listen) 1")
    made.left(0, 60, "os._exit(1)")
    made.call(1, "barrier", 90, None)
    picture = pp.pictures.program(tmp_path)
    bars = [bar for bar in artists(picture, Rectangle) if bar.get_y() < 1 and bar.get_width() > 5]
    assert max(bar.get_x() + bar.get_width() for bar in bars) == pytest.approx(60, abs=0.5)


def test_names_of_one_collective_share_an_entry_of_the_legend(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for n, name in enumerate(("all_gather_into_tensor", "all_gather_single")):
        for rank in range(2):
            made.call(rank, name, 10 * n, 10 * n + 9, ONE)
    for rank in range(2):
        made.left(rank, 30)
    picture = pp.pictures.program(tmp_path)
    assert "all_gather_into_tensor = all_gather_single" in texts(picture.figure)
    assert_legible(picture.figure)


def test_functions_that_a_program_replaces_are_said(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "barrier", 0, 1)
        made.left(rank, 2, replaced=("recv", "send") if rank else ())
    finding = pp.pictures.program(tmp_path).finding
    assert "The program of rank 1 puts functions of its own in place of recv, send:" in finding


def test_who_came_last_most_often_is_said(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for number in range(4):
        made.call(0, "all_reduce", 100 * number, 100 * number + 51, ONE)
        made.call(1, "all_reduce", 100 * number + 50, 100 * number + 51, ONE)
    assert "Rank 1 came last to 4 of 4 collectives" in pp.pictures.program(tmp_path).finding


def test_who_came_last_is_counted_as_often_as_the_picture_marks_it(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for number, late in enumerate((50, 3, 3)):
        made.call(0, "all_reduce", 100 * number, 100 * number + late + 1, ONE)
        made.call(1, "all_reduce", 100 * number + late, 100 * number + late + 1, ONE)
    picture = pp.pictures.program(tmp_path)
    marks = [line for line in picture.figure.axes[0].lines if line.get_marker() == "v"]
    assert len(marks) == 1
    assert "came last" not in picture.finding


def test_what_the_files_cannot_tell_is_said(tmp_path):
    made = MadeCalls(tmp_path, 2, clocks=("here", "there"), head_bytes=2000, tail_bytes=1000)
    for number in range(100):
        made.call(0, "barrier", number, number + 0.5)
        made.send(1, 0, number, number + 0.5)
    made.call(0, "barrier", 100, None)
    finding = pp.pictures.program(tmp_path).finding
    # What met what is not known past the gap, so nothing is said to be missing there.
    assert "Nobody received" not in finding
    assert "calls in the middle were not kept" in finding
    assert "clocks of several hosts" in finding


def test_handles_that_are_let_go_one_after_the_other_are_said_together(tmp_path):
    """As in a loop that keeps the last handle only: each goes when the next has come."""
    made = MadeCalls(tmp_path, 2)
    handles = [made.send(0, 1, 2 * n, 2 * n + 1, name="isend", lent=True) for n in range(3)]
    for n, handle in enumerate(handles[:2]):
        made.drop(0, handle, 2 * n + 3.5)
    made.wait(0, handles[2], 10, 3000, error="RuntimeError: Timed out")
    made.left(0, 3001, "RuntimeError: Timed out")
    made.left(1, 3002)
    said = texts(pp.pictures.program(tmp_path).figure)
    assert "2 handles let go, messages given up" in said
    assert "handle let go, message given up" not in said
