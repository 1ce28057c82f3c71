"""Pictures, the table and the sentence, against runs made by hand (made_runs.py has their numbers)."""

import io
import itertools

import matplotlib as mpl
import msgspec
import pytest
from drawn_timelines import by_gid, drawn, texts
from legible import assert_legible
from made_runs import MS, at, made, moved
from made_streams import made_on_cuda
from matplotlib.colors import to_hex, to_rgba

from ppwork.errors import PlanError
from ppwork.pictures.style import BAD, CALLS, COLOURS, WORK_STEPS, chunk_style
from ppwork.pictures.timeline_words import timeline_finding
from ppwork.pictures.timelines import timeline, timeline_files
from ppwork.plan import Plan
from ppwork.records.clocks import CLOCK
from ppwork.records.spans import Instant, Span
from ppwork.timeline.chunks import chunk_durations
from ppwork.timeline.measures import measure, stage1_ms_of


def compared(first, second, titles):
    return timeline(first, title=titles[0], compare=second, compare_title=titles[1]).figure


def table_of(entries):
    return str(timeline(entries).table)


def lanes(figure, axes=0):
    return [label.get_text() for label in figure.axes[axes].get_yticklabels()]


# What is drawn


def test_every_lane_of_every_rank_is_there_in_the_order_of_a_chunks_life():
    figure = drawn(made())
    assert lanes(figure) == [
        *("main", "down_pg", "up_pg"),
        *("down_pg", "mesh_pg", "main", "up_pg"),
        *("mesh_pg", "main"),
    ]
    assert {"rank 0\nstage0", "rank 1\nleader", "rank 2\nfollower"} <= set(texts(figure))


def test_every_span_and_point_of_every_shown_chunk_is_drawn_once_and_in_its_place():
    found = by_gid(drawn(made(), first_chunk=2, last_chunk=4))
    for k in (2, 3, 4):
        for name in ("encode", "preflight", "send", "decode", "broadcast", "send_result"):
            assert len(found[f"chunk{k}.{name}"]) == 1, (k, name)
        assert len(found[f"chunk{k}.generate"]) == 2
        for name, ms in (("envelope.send", 11), ("mesh.broadcast", 13), ("result.send", 80), ("emit", 99)):
            (point,) = found[f"chunk{k}.{name}"]
            assert point.get_xdata()[0] == pytest.approx((k - 2) * 100 + ms)
        leader = found[f"chunk{k}.generate"][0]
        assert (leader.get_x(), leader.get_width()) == pytest.approx(((k - 2) * 100 + 15, 65))


def test_idle_shares_are_those_of_the_shown_time():
    """Chunks 2 to 4 take 299 ms: rank 0 works 3 x 27, the leader 3 x 65, the follower 3 x 63."""
    shown = texts(drawn(made(), first_chunk=2, last_chunk=4))
    assert [text for text in shown if text.startswith("idle ")] == ["idle 73%", "idle 35%", "idle 37%"]
    shown = texts(drawn(made(), first_chunk=2, last_chunk=4, idle=False))
    assert not [text for text in shown if "%" in text or text == "of this time"]


def test_waiting_is_pale_work_is_solid_and_a_transfer_is_thinner():
    found = by_gid(drawn(made()))
    (work, _), (wait, *_), (transfer,) = (found[f"chunk3.{n}"] for n in ("generate", "receive", "send"))
    assert work.get_facecolor() == to_rgba(chunk_style(3)[0])
    assert work.get_hatch() == chunk_style(3)[1] != ""
    assert to_hex(wait.get_facecolor()) == "#f6f6f6"
    assert not wait.get_hatch()
    assert transfer.get_height() < wait.get_height() < work.get_height()


def test_a_box_of_rank_0_says_which_half_it_is_where_there_is_no_room_for_the_word():
    shown = set(texts(drawn(made(), first_chunk=1, last_chunk=3)))
    assert {"e1", "d1", "e2", "d2", "e3", "d3", "generate 2"} <= shown


def test_a_box_that_is_narrower_still_has_its_letter_and_number_upright():
    figure = drawn(made(chunks=12), first_chunk=5, last_chunk=10)
    upright = {text.get_text() for text in figure.axes[0].texts if text.get_rotation() == 90}
    assert "e10" in upright
    assert "d5" in set(texts(figure)) - upright
    assert_legible(figure)


def test_neighbours_differ_in_colour_and_in_hatch_up_to_four_apart():
    """Colour-blind safe: neither alone carries the chunk."""
    for k, apart in itertools.product(range(70), (1, 2, 3, 4)):
        near, far = chunk_style(k), chunk_style(k + apart)
        assert near[0] != far[0]
        assert near[1] != far[1]
    assert len({chunk_style(k) for k in range(35)}) == 35


def test_colour_of_a_chunk_is_no_calls_no_works_and_not_what_went_wrong():
    """One colour has one meaning: pictures of programs, timelines and sequence charts stand on one page."""
    others = {colour for colour, _ in [*CALLS.values(), *WORK_STEPS.values()]} | {BAD}
    assert not others & set(COLOURS)
    assert not {colour for colour, _ in CALLS.values()} & {colour for colour, _ in WORK_STEPS.values()}


def test_long_run_shows_five_ordinary_chunks_and_not_the_one_that_stalled():
    found = by_gid(drawn(made(20, late_from=3, late_ms=900)))
    shown = {gid.split(".")[0] for gid in found if gid and gid.endswith((".emit", "broadcast"))}
    assert shown == {"chunk4", "chunk5", "chunk6", "chunk7", "chunk8"}


def test_shutdown_and_noop_are_no_second_life_of_a_chunk():
    """SHUTDOWN repeats the index of the last chunk; the leader waits for it from 110 ms on."""
    entries = made(5, overlapped=True)
    entries[0].append(Span("send", "down_pg", at(450), at(451), 77, 3, 0))  # a NOOP: heartbeat
    found = by_gid(drawn(entries, first_chunk=4))
    assert len(found["chunk4.send"]) == 1
    (wait,) = found["control.receive"]
    assert wait.get_x() == pytest.approx(110)
    assert to_hex(wait.get_facecolor()) == "#f6f6f6"  # of no chunk's colour
    assert to_hex(found["control.send"][0].get_facecolor()) == "#777777"


def test_clock_offset_of_another_host_is_subtracted():
    entries = made()
    ahead = Instant(CLOCK, "main", at(7_000), figures={"offset_ns": 7_000.0 * MS})
    elsewhere = {**entries, 1: [ahead, *(moved(entry, 7_000 * MS) for entry in entries[1])]}
    apart = by_gid(drawn(elsewhere))
    together = by_gid(drawn(entries))
    places = [found["chunk3.generate"][0].get_x() for found in (apart, together)]
    assert places == pytest.approx([215, 215])  # chunks 1 to 5 are shown
    assert timeline_finding(elsewhere) == timeline_finding(entries)


def test_two_runs_share_one_time_axis_and_show_the_same_chunks():
    figure = compared(made(20, late_from=3, late_ms=900), made(20, overlapped=True), ("a", "b"))
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim()
    # The same chunks take longer with depth; the title says what one has of it.
    assert [axes.get_title(loc="left") for axes in figure.axes] == [
        "a: chunks 4 to 8; the whole run: one every 147 ms",
        "b: chunks 4 to 8; the whole run: one every 100 ms",
    ]
    assert lanes(figure, 0) == lanes(figure, 1)
    emitted = [by_gid(figure, place)["chunk8.emit"][0].get_xdata()[0] for place in (0, 1)]
    assert emitted == pytest.approx([499, 536])


@pytest.mark.parametrize(
    "second", [made(), made(overlapped=True), made_on_cuda()], ids=["plain", "overlapped", "cuda"]
)
def test_text_is_large_enough_and_nowhere_on_top_of_other_text(second):
    for figure in (drawn(second, title="a run"), compared(made(), second, ("first", "second"))):
        assert_legible(figure)


def test_file_carries_the_sentence_for_those_who_cannot_see_it():
    from PIL import Image

    data = timeline(made()).png()
    with Image.open(io.BytesIO(data)) as image:
        assert image.info["Description"] == timeline_finding(made())
        assert image.width == 1440


def test_defaults_of_matplotlib_are_left_alone():
    before = dict(mpl.rcParams)
    drawn(made())
    assert dict(mpl.rcParams) == before


@pytest.mark.parametrize("entries", [{}, {0: [], 1: []}, {0: [Span("load", "main", 0, 5)], 1: []}])
def test_run_without_chunks_is_refused(entries):
    with pytest.raises(PlanError, match="no spans of any chunk"):
        timeline(entries)


def test_chunks_that_the_run_has_not_are_refused_with_those_it_has():
    with pytest.raises(PlanError, match="Chunks 50 to 55 were asked for; the run has 0 to 7"):
        timeline(made(), first_chunk=50, last_chunk=55)


def test_run_that_failed_in_its_first_chunk_is_drawn_as_far_as_it_got():
    entries = {0: [Span("encode", "main", 10 * MS, 20 * MS, 0, 0, 0)], 1: []}
    assert set(by_gid(drawn(entries))) == {None, "chunk0.encode"}
    assert timeline_finding(entries) == "0 chunks emitted: too few for a period."


def test_shown_chunks_without_a_whole_round_are_told_by_their_number_and_not_by_the_runs():
    entries = {
        rank: [e for e in of_rank if not (e.chunk_index in (4, 5) and e.name in ("emit", "decode"))]
        for rank, of_rank in made().items()
    }
    said = timeline_finding(entries, first_chunk=3, last_chunk=6, depth=3)
    assert said == "Of chunks 3 to 6, 2 were emitted, too few in a row for a period."
    entries[0].append(Instant("drop", "main", 300 * MS, 4, 4))
    said = timeline_finding(entries, first_chunk=3, last_chunk=6, depth=3)
    assert said == "Of chunks 3 to 6, emitted: 3 and 6; made, then stale: 4."


# The same in words


def test_sentence_of_a_sequential_run_by_hand():
    """Seven periods of 100 ms, 65 ms of each generated, all of stage 0's work outside of them."""
    assert timeline_finding(made()) == (
        "Over chunks 1 to 7 the period is 100.0 ms, the mesh leader (rank 1) computes 65% of the time "
        "from emission 0 to 7, and stage 0 and the mesh never work at the same time."
    )


def test_sentence_of_an_overlapped_run_by_hand():
    """From 136 to 836 ms: generated 44 + 6 x 65 of 700; of stage 0's 7 x 16 + 6 x 11, 6 x 16 meanwhile."""
    assert timeline_finding(made(overlapped=True)) == (
        "Over chunks 1 to 7 the period is 100.0 ms, the mesh leader (rank 1) computes 62% of the time "
        "from emission 0 to 7, and 54% of stage 0's work happens while the leader computes."
    )


def test_sentence_about_some_chunks_leaves_the_stall_out():
    entries = made(20, late_from=10, late_ms=900)
    assert "period is 100.0 ms" in timeline_finding(entries, first_chunk=2, last_chunk=6)
    assert "Over chunks 2 to 6" in timeline_finding(entries, first_chunk=2, last_chunk=6)
    assert "At chunk 10 the period is 1000.0 ms" in timeline_finding(entries, first_chunk=10, last_chunk=10)


def test_table_has_a_line_per_chunk_and_ends_with_medians():
    lines = table_of(made(4, cut_at=2)).splitlines()
    names = "chunk epoch encode preflight send forward gen r1 gen r2 result decode period"
    assert lines[1].split() == names.split()
    numbers = ["10.00", "1.00", "2.00", "2.00", "65.00", "63.00", "2.00", "16.00"]
    assert lines[2].split() == ["0", "0", *numbers, "-"]
    assert lines[4].split() == ["2", "1", *numbers, "100.00"]
    assert len(lines) == 2 + 4 + 1
    assert lines[-1].split() == ["mean", *numbers, "100.00"]
    assert len({len(line) for line in lines[1:]}) == 1


def test_table_and_sentence_of_a_window_are_about_its_chunks():
    picture = timeline(made(), first_chunk=2, last_chunk=4)
    assert [row[0] for row in picture.table.rows] == ["2", "3", "4", "mean"]
    assert picture.finding == timeline_finding(made(), first_chunk=2, last_chunk=4)


def test_table_and_sentence_of_two_runs_name_both_and_hold_each_whole():
    slow, quick = made(4), made(5, overlapped=True)
    both = timeline(slow, title="slow", compare=quick, compare_title="slow")
    assert both.table.head[:2] == ["run", "chunk"]
    alone = [[*timeline(entries).table.rows] for entries in (slow, quick)]
    assert [row[1:] for row in both.table.rows] == [*alone[0], *alone[1]]
    assert both.finding == f"Slow: {timeline_finding(slow)} Slow: {timeline_finding(quick)}"


def test_medians_leave_the_first_chunk_out_as_the_measures_do():
    entries = made(3)
    entries[0][0] = Span("encode", "main", 0, 500 * MS, 0, 0, 0)
    assert table_of(entries).splitlines()[-1].split()[1] == "10.00"


def test_dropped_result_has_dashes():
    """R3: a flush drops results; a period over the gap is none."""
    entries = made(4)
    entries[0] = [e for e in entries[0] if not (e.chunk_index == 1 and e.name in ("decode", "emit"))]
    rows = [line.split() for line in table_of(entries).splitlines()]
    assert rows[3][-2:] == ["-", "-"]
    assert rows[4][-2:] == ["16.00", "-"]
    assert rows[5][-2:] == ["16.00", "100.00"]


# Streams of a device (``made_streams`` has their numbers)


def test_every_stream_has_a_row_below_the_threads_of_its_rank():
    rows = lanes(drawn(made_on_cuda()))
    streams_of_0 = ["cuda:compute", "cuda:down_pg", "cuda:up_pg"]
    assert rows[:6] == ["main", "down_pg", "up_pg", *streams_of_0]
    assert sum(row.startswith("cuda:") for row in rows) == 9


def test_the_legend_explains_letters_only_where_boxes_have_them():
    """One chunk has room for words; of three, encode and decode are letters."""

    def shown(last):
        figure = drawn(made(), first_chunk=2, last_chunk=last)
        keys = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
        return {*keys, *texts(figure)}

    assert {"work", "encode 2"} <= shown(2)
    assert {"work (e encode, d decode)", "e2"} <= shown(4)


def test_a_streams_transfer_is_pale_while_it_waits_and_thin_and_solid_while_it_moves():
    """The send of chunk 3 begins 111 ms after the preflight of chunk 2, waits 42 ms and moves 8."""
    figure = drawn(made_on_cuda(), first_chunk=2, last_chunk=4)
    row = lanes(figure).index("cuda:down_pg")
    found = by_gid(figure)
    wait, move = (
        next(bar for bar in found[gid] if bar.get_y() + bar.get_height() / 2 == pytest.approx(row))
        for gid in ("chunk3.receive", "chunk3.send")
    )
    assert (wait.get_x(), wait.get_width()) == pytest.approx((111, 42))
    assert (move.get_x(), move.get_width()) == pytest.approx((153, 8))
    assert to_hex(wait.get_facecolor()) == "#f6f6f6" != to_hex(move.get_facecolor())
    assert move.get_height() < wait.get_height()


def test_work_is_the_devices_and_its_launch_is_thin_and_not_counted_as_idle_or_busy():
    figure = drawn(made_on_cuda(), first_chunk=2, last_chunk=4)
    found = by_gid(figure)
    assert [bar.get_width() for bar in found["chunk3.generate"]] == pytest.approx([98, 96])
    launch = min(found["chunk3.launch"], key=lambda bar: bar.get_height())
    assert launch.get_height() < found["chunk3.generate"][0].get_height()
    assert len([text for text in texts(figure) if text.startswith("idle ")]) == 3


def test_an_arrow_leads_from_stream_to_stream_and_not_over_the_words_of_a_box():
    """Chunk 3: compute to down_pg; down_pg to mesh_pg, to compute, to up_pg; mesh_pg to compute; back."""
    figure = drawn(made_on_cuda(), first_chunk=2, last_chunk=4)
    found = by_gid(figure)
    arrows = [arrow.get_path().get_extents() for arrow in found["chunk3.edge"]]
    assert len(arrows) == 2 + 3 + 1
    words = [text for text in figure.axes[0].texts if text.get_text().startswith("generate")]
    for text in words:
        assert not any(arrow.contains(*text.get_position()) for arrow in arrows)
    assert "edge" in texts(figure)


def test_the_table_has_times_of_the_device_and_of_a_transfer_what_it_moved():
    (row,) = [line.split() for line in table_of(made_on_cuda()).splitlines() if line.strip().startswith("3 ")]
    assert row == ["3", "0", "10.00", "0.50", "8.00", "10.00", "98.00", "96.00", "4.00", "18.00", "100.00"]


def test_the_finding_says_how_many_transfers_were_hidden():
    assert timeline_finding(made_on_cuda(late_from=5)).endswith(
        "4 of 7 transfers to the mesh ended behind the leader's kernels on the chunk before."
    )
    assert "transfers" not in timeline_finding(made())


def test_the_text_has_a_row_per_stream_and_none_without():
    plan = Plan(mesh_size=2, in_flight_depth=3)
    text = timeline_files(plan, made_on_cuda(), "made")["timeline.txt"].decode()
    (row,) = [line.split() for line in text.splitlines() if line.split()[:2] == ["0", "cuda:down_pg"]]
    assert row == ["0", "cuda:down_pg", "8", "6%", "8.00", "42.00"]
    assert "cuda:" not in timeline_files(plan, made(), "made")["timeline.txt"].decode()


@pytest.mark.parametrize("name", [r"a$\frac{b$", "nb$x_{$y", "$"])
def test_a_title_is_drawn_as_it_is_written(name):
    """A folder's name with a `$` once was a formula that did not parse, and the run's result was lost."""
    assert timeline(made(), title=name).png()
    assert any(name in text for text in texts(timeline(made(), title=name).figure))


def test_the_period_is_the_summarys_in_the_sentence_and_in_the_last_line():
    """At depth 2 chunks come in pairs: single periods are one or the other, and the run's is over a round."""
    entries = made()
    emits = [entry for entry in entries[0] if entry.name == "emit"]
    pairs = {id(entry): at((10 if k % 2 else 0) + 100 * k) for k, entry in enumerate(emits)}
    entries[0] = [
        msgspec.structs.replace(entry, at_ns=pairs[id(entry)]) if id(entry) in pairs else entry
        for entry in entries[0]
    ]
    said = timeline_files(Plan(mesh_size=2, in_flight_depth=2), entries, "made")["timeline.txt"].decode()
    period_ms = measure(entries[0], stage1_ms_of(entries[0]), depth=2).period_ms
    period_ms = period_ms or measure(entries[0], chunk_durations(entries[1], "generate"), depth=2).period_ms
    assert f"the period is {period_ms:.1f} ms" in said
    (last,) = [line for line in said.splitlines() if line.split()[:1] == ["mean"]]
    assert last.split()[-1] == f"{period_ms:.2f}"
    assert period_ms == 100.0  # and 90 or 110 from one emission to the next
