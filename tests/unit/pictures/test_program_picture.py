"""The picture of anybody's program, on made-up calls: sentence, table, window, and what is drawn."""

from __future__ import annotations

import json

import pytest
from drawn_timelines import texts
from legible import assert_legible
from made_calls import FLOATS, MadeCalls
from matplotlib.colors import to_hex
from matplotlib.patches import FancyArrowPatch, Polygon, Rectangle

import ppwork as pp
from ppwork.pictures import style
from ppwork.pictures.programs import LISTED, program_files
from ppwork.pictures.shown_time import SHOWN
from ppwork.records.calls import SEND, CallPart

ONE = CallPart(**FLOATS)


@pytest.fixture
def steps(tmp_path):
    """Two ranks that send and reduce; rank 1 is late."""
    made = MadeCalls(tmp_path, 2)
    made.call(0, "init_process_group", -900, -1, group="")
    made.call(1, "init_process_group", -2, -1, group="")
    made.recv(1, 0, 1, 300, line=9)
    made.send(0, 1, 0, 300, line=4)
    made.call(0, "all_reduce", 301, 401, ONE, line=5)
    made.call(1, "all_reduce", 400, 401, ONE, line=5)
    for rank in range(2):
        made.left(rank, 410)
    return made


def artists(picture: pp.Picture, kind: type) -> list[object]:
    return [patch for patch in picture.figure.axes[0].patches if isinstance(patch, kind)]


def test_sentence_and_table_say_who_stood_and_until_when(steps):
    picture = pp.pictures.program(steps.folder)
    assert picture.finding == (
        "2 ranks, 6 calls with init. Rank 0 waited 99 ms in all_reduce (prog.py:5), until rank 1 "
        "called all_reduce (prog.py:5)."
    )
    row = next(row for row in picture.table.rows if row[:2] == ["0", "all_reduce float32[4]"])
    assert row[2:] == ["prog.py:5", "301.00", "100.00", "99.00", ""]


def test_messages_are_arrows_collectives_are_bands_and_start_up_is_not_in_sight(steps):
    picture = pp.pictures.program(steps.folder)
    assert len(artists(picture, FancyArrowPatch)) == 1
    assert len(artists(picture, Polygon)) >= 1
    start, _ = picture.figure.axes[0].get_xlim()
    assert start == pytest.approx(0, abs=10)
    assert {"rank 0", "rank 1", "all_reduce", "send"} <= set(texts(picture.figure))
    assert "came last" in texts(picture.figure)
    assert "buffer lent" not in texts(picture.figure)


def test_a_rank_that_stands_is_drawn_to_the_edge_with_its_line_and_whom_it_awaits(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.recv(0, 1, 0, None, line=7)
    handle = made.call(1, "all_reduce", 0, 1, ONE, lent=True)
    made.wait(1, handle, 2, None, line=8)
    picture = pp.pictures.program(tmp_path)
    said = texts(picture.figure)
    assert "waits for rank 1 (prog.py:7)" in said
    assert "waits for rank 0 (prog.py:8)" in said
    assert (
        "Ranks 0 and 1 wait for each other: rank 0 in recv float32[4] from 1 at prog.py:7, rank 1 in "
        "wait for all_reduce float32[4] at prog.py:8." in picture.finding
    )
    _, edge = picture.figure.axes[0].get_xlim()
    ends = [patch.get_x() + patch.get_width() for patch in picture.figure.axes[0].patches[:8]
            if hasattr(patch, "get_width")]  # fmt: skip
    assert max(ends) == pytest.approx(edge)


def test_a_receive_that_raised_got_nothing_though_its_send_was_called(tmp_path):
    """The program caught the error and went on; on gloo the message was lost with its handle."""
    made = MadeCalls(tmp_path, 2)
    made.send(0, 1, 0, 1, name="isend", lent=True, line=4)
    made.recv(1, 0, 500, 2500, error="RuntimeError: timed out", line=9)
    for rank in range(2):
        made.left(rank, 3000)
    picture = pp.pictures.program(tmp_path)
    assert (
        picture.finding == "2 ranks, 2 calls. Rank 1 waited 2.0 s in recv (prog.py:9), and got RuntimeError."
    )
    assert artists(picture, FancyArrowPatch) == []
    assert "never received" in texts(picture.figure)


def test_a_stand_of_seconds_does_not_hide_the_milliseconds_before_it(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "all_reduce", 0, 5, ONE, line=3)
    made.recv(0, 1, 6, 3006, line=7, error="RuntimeError: Timed out waiting")
    made.left(0, 3007, "RuntimeError: Timed out waiting")
    made.left(1, 8)
    picture = pp.pictures.program(tmp_path)
    _, edge = picture.figure.axes[0].get_xlim()
    assert edge < 20
    said = texts(picture.figure)
    assert "waited for rank 1 (prog.py:7, 3.0 s)" in said
    assert any(text.startswith("3006 ms; 2998 of them are left out") for text in said)
    assert "3006" in said  # the true end stands at the axis
    assert_legible(picture.figure)


def test_of_what_is_left_out_never_all_is_said_to_be(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "all_reduce", 0, 0.1, ONE, line=3)
    made.recv(0, 1, 0.11, 4000.3, line=7, error="RuntimeError: Timed out waiting")
    made.left(0, 4000.3, "RuntimeError: Timed out waiting")
    made.left(1, 0.12)
    (said,) = [text for text in texts(pp.pictures.program(tmp_path).figure) if "left out" in text]
    shown, out = (float(part.split()[0]) for part in said.split(";"))
    assert out < shown


def test_a_stand_of_milliseconds_is_drawn_whole(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "barrier", 0, 1, line=3)
    made.recv(0, 1, 1.1, 15, line=7, error="RuntimeError: Connection closed by peer")
    made.left(0, 16, "RuntimeError: Connection closed by peer")
    made.left(1, 2)
    figure = pp.pictures.program(tmp_path).figure
    assert figure.axes[0].get_xlim()[1] > 15
    assert not any("left out" in text for text in texts(figure))


def long_program(tmp_path, count: int = 500) -> MadeCalls:
    made = MadeCalls(tmp_path, 2)
    for number in range(count):
        late = 90 if number == 300 else 1
        for rank in range(2):
            made.call(rank, "all_reduce", 100 * number + rank * late, 100 * number + 95, ONE, line=5)
    for rank in range(2):
        made.left(rank, 100 * count)
    return made


def test_of_a_long_program_the_stretch_with_the_longest_stall_is_shown_and_the_table_is_folded(tmp_path):
    long_program(tmp_path)
    picture = pp.pictures.program(tmp_path, title="long")
    start, end = picture.figure.axes[0].get_xlim()
    assert start < 30_000 < end
    assert end - start < (SHOWN + 2) * 100
    assert any(text.startswith("long: ") and text.endswith(" of 49995 ms") for text in texts(picture.figure))
    assert [row[:4] for row in picture.table.rows] == [
        ["0", "all_reduce float32[4]", "prog.py:5", "500"],
        ["1", "all_reduce float32[4]", "prog.py:5", "500"],
    ]
    assert "Rank 0 waited 90 ms" in picture.finding


def test_calls_of_one_line_with_tensors_of_many_shapes_are_one_row_of_the_folded_table(tmp_path):
    """A forecaster with 5 to 15 cars had some 150 rows for 14 lines."""
    made = MadeCalls(tmp_path, 2)
    for number in range(LISTED):
        sizes = [(5 + number % 11, 32), (4,) * (1 + number % 2)]
        for rank in range(2):
            for line, shape in enumerate(sizes):
                part = CallPart(dtype="float32", shape=shape)
                made.call(
                    rank,
                    "all_reduce",
                    10 * number + 2 * line,
                    10 * number + 2 * line + 1,
                    part,
                    line=5 + line,
                )
        made.call(0, "new_group", 10 * number + 8, 10 * number + 9, op=f"[{number % 2}]", line=9)
    rows = [row[:4] for row in pp.pictures.program(tmp_path).table.rows]
    ranks = [[str(rank), f"all_reduce float32[{said}]", f"prog.py:{line}", str(LISTED)]
             for line, said in ((5, "5..15, 32"), (6, "...")) for rank in range(2)]  # fmt: skip
    groups = [["0", f"new_group [{rank}]", "prog.py:9", str(LISTED // 2)] for rank in range(2)]
    assert sorted(rows) == sorted([*ranks, *groups])


def test_a_window_shows_what_was_asked_for_and_an_empty_one_is_refused(tmp_path):
    long_program(tmp_path, count=LISTED)
    picture = pp.pictures.program(tmp_path, from_ms=1000, until_ms=1200)
    assert picture.figure.axes[0].get_xlim() == pytest.approx((998, 1200))
    with pytest.raises(pp.PlanError, match="no call between"):
        pp.pictures.program(tmp_path, from_ms=1e6)


def test_the_sentence_of_a_window_is_of_the_window(tmp_path):
    made = MadeCalls(tmp_path, 3)
    for start, late in ((0, 900), (1000, 1050)):
        for rank in (0, 2):
            made.call(rank, "all_reduce", start, late + 1, ONE, line=3)
        made.call(1, "all_reduce", late, late + 1, ONE, line=3)
    whole = pp.pictures.program(tmp_path)
    assert "Ranks 0 and 2 waited 900 ms in all_reduce (prog.py:3), until rank 1 called" in whole.finding
    part = pp.pictures.program(tmp_path, from_ms=950, until_ms=1060, names={1: "the late one"})
    assert "Between 950 and 1051 ms ranks 0 and 2 waited 50 ms in all_reduce" in part.finding
    assert {"rank 1", "the late one"} <= set(texts(part.figure))
    assert_legible(part.figure)


def test_a_program_without_a_call_is_refused(tmp_path):
    with pytest.raises(pp.PlanError, match="no call of torch"):
        pp.pictures.program(tmp_path)


def test_files_are_the_picture_its_text_and_a_trace(steps):
    files = program_files(steps.folder)
    assert files["calls.png"].startswith(b"\x89PNG")
    assert "Rank 0 waited 99 ms" in files["calls.txt"].decode()
    assert b'"message"' in files["calls-trace.json"]


def test_the_shut_down_is_cut_unless_somebody_is_left_in_a_call(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.send(0, 1, 0, 10, line=4)
    made.recv(1, 0, 2, 10, line=9)
    for rank in range(2):
        made.call(rank, "destroy_process_group", 10.1, 100)
        made.left(rank, 101)
    picture = pp.pictures.program(tmp_path)
    assert picture.figure.axes[0].get_xlim()[1] == pytest.approx(10.5)
    assert "shut-down, cut short" in texts(picture.figure)
    assert_legible(picture.figure)
    made = MadeCalls(tmp_path, 2)
    made.recv(0, 1, 0, 20, line=4, error="RuntimeError: Connection closed by peer")
    made.left(0, 21, "RuntimeError: Connection closed by peer")
    made.call(1, "destroy_process_group", 10, 100)
    made.left(1, 101)
    picture = pp.pictures.program(tmp_path)
    assert picture.figure.axes[0].get_xlim()[1] > 100
    assert "shut-down" in texts(picture.figure)


def test_a_group_that_nobody_else_made_is_named_alike_where_the_program_ended_with_it(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.call(1, "new_group", 0, 100, op="[1]", makes="1", line=9)
    for rank, number in ((0, "1"), (1, "2")):
        error = "DistStoreError: timeout"
        made.call(rank, "new_group", 101, 3101, op="[0, 1]", makes=number, line=13, error=error)
        made.left(rank, 3102, error)
    said = texts(pp.pictures.program(tmp_path).figure)
    assert "looked under name 2, to which rank 0 never came (prog.py:13, 3.0 s)" in said


def test_a_group_that_could_not_be_made_is_shown_with_its_name_on_each_rank(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "init_process_group", -100, -1, group="")
    made.call(1, "new_group", 0, 1, op="[1]", makes="1", line=9)
    made.call(0, "new_group", 0, 3000, op="[0, 1]", makes="1", line=13, error="DistStoreError: timeout")
    made.call(1, "new_group", 1, 3001, op="[0, 1]", makes="2", line=13, error="DistStoreError: timeout")
    for rank in range(2):
        made.call(rank, "barrier", 3002, 3003)
        made.left(rank, 3004)
    picture = pp.pictures.program(tmp_path)
    said = texts(picture.figure)
    assert {"new_group 1: [0, 1]", "new_group 2: [0, 1]", "raised"} <= set(said)
    assert (
        "In their first new_group the ranks differ: rank 0 makes [0, 1], rank 1 makes [1]. Rank 0 waited "
        "3.0 s under name 1, where rank 1 made another group; rank 1 waited 3.0 s under name 2, to which "
        "rank 0 never came." in picture.finding
    )
    assert {
        "looked under name 1, where rank 1 made another group (prog.py:13)",
        "looked under name 2, to which rank 0 never came (prog.py:13)",
    } <= set(said)
    assert "in barrier" not in picture.finding  # of the barrier, some milliseconds
    assert len([bar for bar in artists(picture, Rectangle) if bar.get_linewidth() > 2]) == 2
    # Each of them made another group: they did not meet.
    assert "band: ranks in the same collective call" in said
    assert len(artists(picture, Polygon)) == 1 + 3  # the band of the barrier, and the break in rows and axis
    assert_legible(picture.figure)


def test_a_collective_that_one_rank_came_late_to_is_drawn_as_one(tmp_path):
    made = MadeCalls(tmp_path, 3)
    for rank, start in enumerate((0, 2000, 0)):
        made.call(rank, "broadcast", start, 2001 if rank == 0 else start + 1)
        made.left(rank, 2002)
    axes = pp.pictures.program(tmp_path).figure.axes[0]
    joined = [line for line in axes.lines if sorted(line.get_xdata()) == [0, 2000]]
    assert len(joined) == 1  # of ranks 1 and 2, whose band is a thousandth of the width


def test_a_call_looks_the_same_in_every_picture(tmp_path):
    faces = []
    for name in ("one", "two"):
        made = MadeCalls(tmp_path / name, 2)
        if name == "two":
            made.call(0, "barrier", 0, 1)
            made.call(1, "barrier", 0, 1)
        made.send(0, 1, 2, 10)
        made.recv(1, 0, 2, 10)
        figure = pp.pictures.program(tmp_path / name).figure
        keys = zip(figure.legends[0].get_texts(), figure.legends[0].get_patches(), strict=False)
        faces.append({text.get_text(): patch.get_facecolor() for text, patch in keys})
    assert faces[0]["send"] == faces[1]["send"] != faces[0]["recv"] == faces[1]["recv"]


def test_many_lent_buffers_are_counted(tmp_path):
    made = MadeCalls(tmp_path, 2)
    handles = [made.send(0, 1, 10 * n, 10 * n + 1, name="isend", lent=True) for n in range(6)]
    for n, handle in enumerate(handles):
        made.recv(1, 0, 60 + 10 * n, 61 + 10 * n)
        made.wait(0, handle, 100 + n, 101 + n)
    said = texts(pp.pictures.program(tmp_path).figure)
    assert "6" in said


def test_a_message_whose_handle_nobody_waited_for_does_not_arrive_before_it_left(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.recv(0, 1, 10, 11, name="irecv", lent=True)
    made.send(1, 0, 50, 51)
    for rank in range(2):
        made.left(rank, 60)
    picture = pp.pictures.program(tmp_path)
    (arrow,) = artists(picture, FancyArrowPatch)
    (tail, _), (head, _) = arrow.get_path().vertices[[0, 2]]  # of its shaft
    assert tail < head
    assert "message that was not taken" in texts(picture.figure)


@pytest.mark.parametrize("end", [11, None])
def test_one_arrow_has_one_word_in_the_legend_if_it_does_not_fit(tmp_path, end):
    made = MadeCalls(tmp_path, 2)
    made.call(0, "send", 1, 2, CallPart(SEND, 1, dtype="int64", shape=(3,), size=24))
    made.recv(1, 0, 1, end)
    words = {text for text in texts(pp.pictures.program(tmp_path).figure) if text.startswith("message")}
    assert words == {f"message of another size or type{', not taken' if end is None else ''}"}


def test_a_buffer_that_was_lent_before_the_window_is_lent_in_it(tmp_path):
    made = MadeCalls(tmp_path, 2)
    handles = [made.send(0, 1, 10 * n, 10 * n + 1, name="isend", lent=True) for n in range(6)]
    for n, handle in enumerate(handles):
        made.wait(0, handle, 200 + n, 200.5 + n, line=5)
    made.recv(1, 0, 0, 300)
    said = texts(pp.pictures.program(tmp_path, from_ms=100, until_ms=150).figure)
    assert "buffer lent" in said
    assert "6" in said
    assert "buffer lent" not in texts(
        pp.pictures.program(tmp_path, from_ms=100, until_ms=150, lent=False).figure
    )


def test_ticks_behind_a_break_go_up(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "all_reduce", 0, 0.4, ONE, line=3)
    made.recv(0, 1, 0.5, 3001.07, line=7, error="RuntimeError: Timed out waiting")
    made.left(0, 3001.17, "RuntimeError: Timed out waiting")
    made.left(1, 0.7)
    axis = pp.pictures.program(tmp_path).figure.axes[0]
    assert any("left out" in text for text in texts(axis.figure))
    shown = [float(label.get_text()) for label in axis.get_xticklabels()]
    assert shown == sorted(set(shown)), shown


def test_a_helper_thread_has_a_row_of_its_own(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.recv(0, 1, 0, 100)
    made.send(0, 1, 50, 90, thread="Thread-1 (lane) 4711")
    made.recv(1, 0, 50, 90)
    made.send(1, 0, 90, 100)
    said = texts(pp.pictures.program(tmp_path).figure)
    assert {"main", "lane", "in a call"} <= set(said)


def test_a_stream_has_a_row_that_shows_when_a_call_ran_and_not_when_it_was_launched(tmp_path):
    made = MadeCalls(tmp_path, 2, backend="nccl")
    for rank in range(2):
        number = made.call(rank, "all_reduce", 0, 0.2, ONE, line=4)
        made.on_device(rank, number, 30, 70)
        handle = made.call(rank, "broadcast", 1, 1.2, ONE, lent=True, line=5)
        made.wait(rank, handle, 2, 2.1)
        made.on_device(rank, handle, 75, 95, "stream 1")
        made.left(rank, 3)
    picture = pp.pictures.program(tmp_path)
    said = texts(picture.figure)
    assert {"on cuda", "on stream 1"} <= set(said)
    assert said.count("all_reduce") >= 2 + 1  # in its row of each rank, and in the legend
    assert picture.figure.axes[0].get_xlim()[1] > 95
    assert "Rank 0 went on 93 ms before its device had broadcast (prog.py:5), on stream 1." in picture.finding
    assert_legible(picture.figure)
    trace = json.loads(program_files(tmp_path)["calls-trace.json"])["traceEvents"]
    ran, _ = [e for e in trace if e.get("cat") == "device" and e["name"] == "all_reduce"]
    assert (ran["ts"], ran["dur"]) == (30_000, 40_000)
    assert "stream 1" in [e["args"]["name"] for e in trace if e["name"] == "thread_name"]


def test_what_a_functional_call_lends_is_lent_until_torch_waits_for_it(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        number = made.call(rank, "all_reduce", 0, 1, ONE, lent=True, line=4)
        made.call(rank, "wait_tensor", 50, 60, line=6, group="", of=number)
        made.left(rank, 61)
    picture = pp.pictures.program(tmp_path)
    assert "wait for all_reduce float32[4]" in str(picture.table)
    assert "buffer lent" in texts(picture.figure)
    (band,) = artists(picture, Polygon)
    assert max(x for x, _ in band.get_xy()) == pytest.approx(60)


def test_a_mismatch_that_torch_found_is_no_wait_for_nobody(tmp_path):
    """``TORCH_DISTRIBUTED_DEBUG=DETAIL``: both ranks raise at once."""
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        part = CallPart("", **(FLOATS | {"shape": (4 + rank,), "size": 16 + 4 * rank}))
        error = "RuntimeError: Detected mismatch between collectives on ranks."
        made.call(rank, "all_reduce", 0, 30, part, line=7, error=error)
        made.left(rank, 31, error)
    picture = pp.pictures.program(tmp_path)
    said = texts(picture.figure)
    assert not {"waited here", "was here"} & set(said)
    assert "does not fit the call of rank 1 (prog.py:7)" in said
    assert "does not fit the call of rank 0 (prog.py:7)" in said
    assert "Collective 1 of default_pg: rank 0 all_reduce float32[4], rank 1" in picture.finding


def hatched(picture: pp.Picture) -> list[object]:
    return [band for band in artists(picture, Polygon) if band.get_hatch()]


@pytest.fixture
def skipped(tmp_path):
    """Rank 1 made a call less: its barrier has the number of the other's last sum."""
    made = MadeCalls(tmp_path, 2)
    for n in range(2):
        for rank in range(2):
            made.call(rank, "all_reduce", 500 * n, 500 * n + 400, ONE, line=5)
    made.call(0, "all_reduce", 1000, 4000, ONE, line=5, error="RuntimeError: Timed out")
    made.call(1, "barrier", 1000, 4000, line=8, error="RuntimeError: Timed out")
    for rank in range(2):
        made.left(rank, 4001, "RuntimeError: Timed out")
    return pp.pictures.program(tmp_path)


def test_calls_of_one_number_that_differ_are_no_call_of_all_ranks(skipped):
    said = texts(skipped.figure)
    assert {"#1", "#2", "all_reduce #3", "barrier #3"} <= set(said)
    assert "same number (#), not the same call" in said
    assert len(hatched(skipped)) == 1
    assert_legible(skipped.figure)


def test_where_all_calls_fit_there_is_no_number(steps):
    picture = pp.pictures.program(steps.folder)
    assert hatched(picture) == []
    assert not any("#" in text for text in texts(picture.figure))


def test_a_rank_in_code_of_its_own_is_framed_there_and_not_in_the_call_it_made_afterwards(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "barrier", 0, 10, line=3)
    made.recv(0, 1, 11, 3011, line=7, error="RuntimeError: Timed out")
    made.left(0, 3012, "RuntimeError: Timed out")
    made.send(1, 0, 3110, 3111, line=9, error="RuntimeError: Connection closed by peer")
    made.left(1, 3112, "RuntimeError: Connection closed by peer")
    picture = pp.pictures.program(tmp_path)
    said = texts(picture.figure)
    assert "in code of its own, 3.1 s" in said
    assert "waited for rank 1 (prog.py:7, 3.0 s)" in said
    assert not any("nobody" in text for text in said)
    frames = [bar for bar in artists(picture, Rectangle) if bar.get_linewidth() > 2]
    assert len(frames) == 2
    # It worked, and is not drawn as the one that stood.
    assert [bar.get_gid() for bar in frames if bar.get_gid()] == ["own"]
    assert {"waited here", "in code of its own"} <= {*said}
    assert_legible(picture.figure)


def test_a_rank_that_was_ended_in_code_of_its_own_is_framed_to_the_edge(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.call(0, "monitored_barrier", 0, 2000, line=7, error="RuntimeError: Ranks 1 failed to pass")
    made.left(0, 2001, "RuntimeError: Ranks 1 failed to pass")
    made.call(1, "init_process_group", -10, 0, group="")
    picture = pp.pictures.program(tmp_path)
    assert "in code of its own" in texts(picture.figure)
    _, edge = picture.figure.axes[0].get_xlim()
    frames = [bar for bar in artists(picture, Rectangle) if bar.get_linewidth() > 2]
    assert max(bar.get_x() + bar.get_width() for bar in frames) == pytest.approx(edge)


REPORT = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-11-23_02:00:00
  host      : here
  rank      : 1 (local_rank: 1)
  exitcode  : -9 (pid: 12)
  error_file: <N/A>
  traceback : Signal 9 (SIGKILL) received by PID 12
"""


@pytest.mark.parametrize("in_call", [False, True], ids=["between calls", "in a call"])
def test_a_rank_that_was_killed_ends_where_its_peer_noticed_and_says_the_signal(tmp_path, in_call):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "barrier", 0, 10, line=3)
    made.recv(0, 1, 11, 40, line=7, error="RuntimeError: Connection closed by peer")
    made.left(0, 90, "RuntimeError: Connection closed by peer")
    if in_call:
        made.recv(1, 0, 12, None, line=9)
    (tmp_path / "torchrun.log").write_text(REPORT)
    picture = pp.pictures.program(tmp_path)
    said = texts(picture.figure)
    assert (
        "ended by SIGKILL in this call (prog.py:9)"
        if in_call
        else "last seen; ended by SIGKILL somewhere in here"
    ) in said
    assert "in code of its own" not in f"{said} {picture.finding}"
    assert "SIGKILL" in picture.finding or in_call
    assert ("ended by a signal" in said) is in_call  # elsewhere the moment is not known
    of_rank1 = [b for b in artists(picture, Rectangle) if b.get_y() > 1.2 and b.get_width() > 5]
    assert of_rank1
    assert max(bar.get_x() + bar.get_width() for bar in of_rank1) == pytest.approx(40, abs=0.5)
    assert_legible(picture.figure)


def test_a_peer_is_gone_where_a_call_lost_it_and_not_where_one_was_refused_or_found_it_lost(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "barrier", 0, 10, line=3)
    made.send(0, 1, 11, 12, line=7, error="RuntimeError: input tensor has to be contiguous")
    made.send(0, 1, 13, 40, line=8, error="RuntimeError: Connection reset by peer")
    made.send(0, 1, 41, 41.1, line=10, error="RuntimeError: Connection reset by peer")
    made.left(0, 90)
    made.recv(1, 0, 11, None, line=9)
    (tmp_path / "torchrun.log").write_text(REPORT)
    picture = pp.pictures.program(tmp_path)
    of_rank1 = [b for b in artists(picture, Rectangle) if b.get_y() > 1.2 and b.get_width() > 5]
    assert max(bar.get_x() + bar.get_width() for bar in of_rank1) == pytest.approx(40, abs=0.5)
    assert "waited for rank 1 (prog.py:8, 27 ms)" in texts(picture.figure)


def test_code_of_its_own_behind_what_is_drawn_has_no_frame(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.call(0, "barrier", 0, 10)
    made.call(0, "destroy_process_group", 11, 90)
    made.recv(1, 0, 11, None, line=7)
    picture = pp.pictures.program(tmp_path, until_ms=50)
    said = texts(picture.figure)
    assert "waited here" in said
    assert not any(text.startswith("in code of its own") for text in said)


@pytest.mark.parametrize(
    ("state", "said"),
    [("stopped", "last seen; stopped somewhere in here"), ("sleeping", "in code of its own")],
)
def test_a_rank_that_the_launcher_ended_is_not_said_to_have_died_of_that(tmp_path, state, said):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "barrier", 0, 10, line=3)
    made.recv(0, 1, 11, 4011, line=7, error="RuntimeError: Timed out")
    made.left(0, 4012, "RuntimeError: Timed out")
    by_us = f"ppwork: rank 1 (pid 12, {state}) was there 1 s after the first death and was killed\n"
    (tmp_path / "torchrun.log").write_text(by_us + REPORT)
    picture = pp.pictures.program(tmp_path)
    shown = texts(picture.figure)
    assert said in shown
    assert "SIGKILL" not in f"{shown} {picture.finding}"
    assert "ended by a signal" not in shown
    _, edge = picture.figure.axes[0].get_xlim()
    frames = [bar for bar in artists(picture, Rectangle) if bar.get_linewidth() > 2]
    assert ("own" in {bar.get_gid() for bar in frames}) == (state == "sleeping")
    assert max(bar.get_x() + bar.get_width() for bar in frames) == pytest.approx(edge)
    grey = [bar for bar in artists(picture, Rectangle) if to_hex(bar.get_facecolor()) == to_hex(style.PALE)]
    ends = max(bar.get_x() + bar.get_width() for bar in grey if bar.get_y() > 1.2)
    assert ends == pytest.approx(10 if state == "stopped" else edge), "what a stopped rank did is not known"


def test_the_legend_has_no_band_that_is_too_thin_to_be_seen(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "new_group", 0, 4, op="[0, 1]", makes="1")
        made.call(rank, "barrier", 995, 1000)
    assert "band: ranks in the same collective call" not in texts(pp.pictures.program(tmp_path).figure)
    near = pp.pictures.program(tmp_path, until_ms=100)
    assert "band: ranks in the same collective call" in texts(near.figure)


def test_a_picture_can_begin_after_the_groups_are_made(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "new_group", 0, 100, op="[0, 1]", makes="1")
        made.call(rank, "barrier", 101, 105)
        made.left(rank, 106)
    assert "new_group 1: [0, 1]" in texts(pp.pictures.program(tmp_path).figure)
    picture = pp.pictures.program(tmp_path, after="new_group")
    axes = picture.figure.axes[0]
    assert axes.get_xlim()[0] == pytest.approx(0, abs=1)
    assert axes.get_xlabel() == "milliseconds after the last new_group"
    part = pp.pictures.program(tmp_path, after="new_group", until_ms=3).figure.axes[0]
    assert part.get_xlim() == pytest.approx((0, 3), abs=0.1), "counted from the end of new_group, too"
    assert part.get_xlabel() == axes.get_xlabel()
    with pytest.raises(pp.PlanError, match="No call of split_group"):
        pp.pictures.program(tmp_path, after="split_group")


def test_no_two_calls_look_alike_and_a_band_of_ddp_is_seen(tmp_path):
    looks = [look for name, look in style.CALLS.items() if name != "destroy_process_group"]
    assert len({*looks}) == len(looks)
    made = MadeCalls(tmp_path, 2)
    for rank in range(2):
        made.call(rank, "DistributedDataParallel", 0, 20)
        made.call(rank, "backward of DDP", 30, 40)
        made.left(rank, 41)
    first, second = artists(pp.pictures.program(tmp_path), Polygon)
    faint = {style.OTHER_CALLS[0].lower()}
    assert not faint & {to_hex(first.get_facecolor()), to_hex(second.get_facecolor())}


def test_a_page_says_what_a_rank_does_between_its_calls_and_how_long_a_period_is(tmp_path):
    made = MadeCalls(tmp_path, 2)
    for n in range(3):
        made.recv(1, 0, 100 * n, 100 * n + 51, line=9)
        made.send(0, 1, 100 * n + 50, 100 * n + 51, line=4)
    picture = pp.pictures.program(
        tmp_path,
        work={(0, "send"): "encode {}".format, (1, "recv"): "a text that has no room here at all".format},
        spans={"one period": ((0, "send", 1), (0, "send", 2))},
    )
    said = texts(picture.figure)
    assert {"encode 0", "encode 1", "encode 2", "one period: 100 ms"} <= set(said)
    assert not any("no room" in text for text in said)
    lines = [line for line in picture.figure.axes[0].lines if line.get_gid() == "span"]
    assert [float(x) for x in lines[0].get_xdata()] == [150, 250]
    assert_legible(picture.figure)


def test_no_message_strikes_out_the_name_of_a_buffer_that_it_crosses(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.wait(0, made.send(0, 1, 0, 1, name="isend", lent=True), 200, 500)
    made.recv(1, 0, 490, 500, line=9)
    picture = pp.pictures.program(tmp_path)
    (message,) = artists(picture, FancyArrowPatch)
    named = [text for text in picture.figure.axes[0].texts if text.get_text() == "isend"]
    assert min(text.get_zorder() for text in named) > message.get_zorder()


def test_a_moment_of_a_page_is_a_line_through_the_buffer_that_is_lent_then(tmp_path):
    made = MadeCalls(tmp_path, 2)
    made.wait(0, made.send(0, 1, 0, 1, name="isend", lent=True), 200, 500)
    made.recv(1, 0, 490, 500, line=9)
    picture = pp.pictures.program(tmp_path, marks={"fill_(2)": (0, "wait", 0)})
    *_, line = [line for line in picture.figure.axes[0].lines if line.get_gid() == "mark"]
    lent = [text.get_position()[1] for text in picture.figure.axes[0].texts if text.get_text() == "isend"]
    assert "fill_(2)" in texts(picture.figure)
    assert set(line.get_xdata()) == {200}
    assert min(line.get_ydata()) < max(lent) < max(line.get_ydata())
    assert_legible(picture.figure)


def test_a_span_to_a_call_that_was_not_made_is_refused(steps):
    with pytest.raises(pp.PlanError, match="no call number 9 of send on rank 0"):
        pp.pictures.program(steps.folder, spans={"period": ((0, "send", 0), (0, "send", 9))})


def test_a_program_may_end_before_a_call_that_has_a_word(steps):
    said = texts(pp.pictures.program(steps.folder, work={(1, "send"): "generate {}".format}).figure)
    assert "rank 1" in said
    assert not any("generate" in text for text in said)


def test_without_bands_nothing_joins_the_ranks_of_a_collective(steps):
    picture = pp.pictures.program(steps.folder, bands=False)
    assert artists(picture, Polygon) == []
    assert "band: ranks in the same collective call" not in texts(picture.figure)
    assert "came last" in texts(picture.figure)
