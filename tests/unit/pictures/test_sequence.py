"""One call between ranks, by hand: what was sent and when, what never came, and the same as a picture."""

from __future__ import annotations

import pytest
from failed_runs import KILLED, failed_run, record
from legible import assert_legible
from made_runs import at, made
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyArrowPatch, Rectangle
from matplotlib.path import Path
from msgspec import structs

import ppwork as pp
from ppwork.errors import PlanError
from ppwork.pictures.sequences import sequence
from ppwork.pictures.style import BAD
from ppwork.plan import Plan
from ppwork.records.failure import write_record
from ppwork.records.run import Run
from ppwork.records.spans import Instant, Recorder, Span, span_file
from ppwork.timeline.call import call_story

CHUNK_3 = {"call_id": 3, "chunk_index": 3, "cache_epoch": 0}


def run_of(folder, entries, failure=None):
    """Write what the ranks of a run leave."""
    (folder / Plan.FILE_NAME).write_bytes(Plan(mesh_size=len(entries) - 1, chunks=8).to_json())
    for rank, mine in entries.items():
        with Recorder(span_file(folder, rank)) as recorder:
            for entry in mine:
                recorder.write(entry)
    return Run(folder, 1 if failure else 0, failure)


def struck(folder, mesh_size=2, spoke_ms=20):
    """Fault F07 in chunk 3: the leader has it at 313 ms and raises; notices reach the others by 331 ms."""
    entries = {
        rank: [
            entry for entry in found if entry.chunk_index < 3 or entry.name in ("encode", "preflight", "send")
        ]
        for rank, found in made(4, mesh_size=mesh_size).items()
    }
    entries[0].append(Instant("envelope.send", "main", at(311), **CHUNK_3))
    entries[1].append(Span("receive", "down_pg", at(210), at(313), **CHUNK_3))
    entries[1].append(Instant("mesh.broadcast", "main", at(313), **CHUNK_3))
    entries[1].append(Instant("fault.injected", "fault", at(314), **CHUNK_3))
    entries[2].append(
        Span("receive", "mesh_pg", at(215), at(328), **CHUNK_3)
    )  # the notice, with the last ids
    entries[0].append(Instant("arrive", "up_pg", at(330), **CHUNK_3))  # so is this
    run = run_of(folder, entries, pp.RunFailed("it failed", where={"rank": 1}))
    last = [(rank, "TerminalNotice", 331 - rank) for rank in (*range(2, mesh_size + 1), 0)]
    for rank, error_type, ms in [(1, "RuntimeError", 300 + spoke_ms), *last]:
        write_record(folder, record(rank, error_type, at(ms)))
    return run


def ways(story):
    return [(m.point, m.group, m.sender, m.receiver, m.left_ms, m.arrived_ms) for m in story.messages]


def test_messages_of_a_call_leave_at_commitment_points_and_arrive_whole(tmp_path):
    story = call_story(run_of(tmp_path, made()), 2)
    assert ways(story) == [
        ("envelope.send", "down_pg", 0, 1, 11, 13),
        ("mesh.broadcast", "mesh_pg", 1, 2, 13, 15),
        ("result.send", "up_pg", 1, 0, 80, 83),
    ]
    assert dict(story.points) == {"envelope.send": 11, "mesh.broadcast": 13, "result.send": 80}
    assert [(step.rank, step.name, step.start_ms, step.end_ms) for step in story.steps] == [
        (0, "encode", 0, 10),
        (0, "preflight", 10, 11),
        (0, "decode", 83, 99),
        (1, "generate", 15, 80),
        (2, "generate", 15, 78),
    ]
    assert story.end == ("emit", 99)
    assert (story.undone, story.last_words, story.injected) == ({}, (), None)


def test_result_is_here_when_it_arrives_and_not_when_it_is_taken(tmp_path):
    entries = made()
    entries[0].append(Instant("arrive", "up_pg", at(281), 2, 2, 0))
    assert ways(call_story(run_of(tmp_path, entries), 2))[-1][-1] == 81


def test_shutdown_is_another_call_although_it_repeats_the_chunk(tmp_path):
    story = call_story(run_of(tmp_path, made(4)), 3)
    assert story.call_id == 3
    assert [step.name for step in story.steps if step.rank == 0] == ["encode", "preflight", "decode"]


def test_notice_is_not_taken_for_the_message_in_whose_place_it_came(tmp_path):
    story = call_story(struck(tmp_path), 3)
    assert ways(story) == [
        ("envelope.send", "down_pg", 0, 1, 11, 13),
        ("mesh.broadcast", "mesh_pg", 1, 2, 13, None),
    ]
    assert story.undone == {0: ("decode", "emit"), 1: ("generate", "result.send"), 2: ("generate",)}
    assert story.injected == (1, 14)
    words = [(w.rank, w.error_type, w.at_ms, w.told_by, w.told_ms) for w in story.last_words]
    assert words == [
        (1, "RuntimeError", 20, None, None),
        (2, "TerminalNotice", 29, 1, 20),
        (0, "TerminalNotice", 31, 1, 20),
    ]


def test_message_that_was_used_has_come_although_its_sender_died_with_the_transfer(tmp_path):
    entries = {0: made(4)[0], 1: [], 2: []}
    entries[1].append(Instant("mesh.broadcast", "main", at(313), **CHUNK_3))
    entries[2] += [Span("receive", "mesh_pg", at(290), at(316), **CHUNK_3)]
    entries[2] += [Span("generate", "main", at(317), at(380), **CHUNK_3)]
    (_, into) = ways(call_story(run_of(tmp_path, entries), 3))
    assert into == ("mesh.broadcast", "mesh_pg", 1, 2, 13, 16)


def test_finished_call_of_a_failed_run_knows_nothing_of_the_failure(tmp_path):
    story = call_story(failed_run(tmp_path, **KILLED), 1)
    assert story.end == ("emit", 99)
    assert story.last_words == ()
    assert story.injected is None


def test_clock_of_another_host_is_brought_back(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    here = call_story(failed_run(tmp_path / "here", **KILLED), 3)
    there = call_story(failed_run(tmp_path / "there", **KILLED, offset_ms=700), 3)
    assert here == there
    assert [(word.rank, word.at_ms) for word in here.last_words] == [(1, 33), (0, 43.5)]


def test_stale_chunk_owes_neither_decode_nor_emission(tmp_path):
    entries = made(4)
    entries[0] = [e for e in entries[0] if e.name not in ("decode", "emit") or e.chunk_index != 2]
    entries[0].append(Instant("drop", "main", at(284), 2, 2, 0))
    story = call_story(run_of(tmp_path, entries), 2)
    assert story.end == ("drop", 84)
    assert story.undone == {}
    assert (
        "came back stale and was dropped 84 ms" in sequence(run_of(tmp_path, entries), chunk_index=2).finding
    )


def test_chunk_that_the_run_has_not_is_refused(tmp_path):
    with pytest.raises(PlanError, match="no chunk 9") as refused:
        call_story(run_of(tmp_path, made(4)), 9)
    assert "chunks 0 to 3" in refused.value.check_first
    with pytest.raises(PlanError, match="no chunk 0") as refused:
        call_story(run_of(tmp_path, {0: [], 1: []}), 0)
    assert "no chunk" in refused.value.check_first


# In words


def test_table_is_in_order_of_time(tmp_path):
    chart = sequence(run_of(tmp_path, made()), chunk_index=2)
    assert [line.split()[:4] for line in str(chart.table).splitlines()[1:]] == [
        ["0.00", "0", "stage0", "encode"],
        ["10.00", "0", "stage0", "preflight"],
        ["11.00", "0", "stage0", "envelope.send"],
        ["13.00", "1", "leader", "mesh.broadcast"],
        ["15.00", "1", "leader", "generate"],
        ["15.00", "2", "follower", "generate"],
        ["80.00", "1", "leader", "result.send"],
        ["83.00", "0", "stage0", "decode"],
        ["99.00", "0", "stage0", "emit"],
    ]
    assert ["mesh.broadcast", "2", "2.00 ms"] in [list(row[3:]) for row in chart.table.rows]
    assert repr(chart) == f"{chart.table}\n{chart.finding}"


def test_table_of_a_failure_says_what_was_not_taken_and_not_done(tmp_path):
    table = sequence(struck(tmp_path), chunk_index=3).table
    rows = [list(row) for row in table.rows]
    assert ["mesh.broadcast", "2", "not taken"] in [row[3:] for row in rows]
    assert ["14.00", "1", "leader", "the fault"] in [row[:4] for row in rows]
    assert ["20.00", "1", "leader", "gave up: RuntimeError"] in [row[:4] for row in rows]
    assert str(table).count("not done") == 5


def test_mesh_of_one_passes_the_point_and_moves_nothing(tmp_path):
    chart = sequence(run_of(tmp_path, made(mesh_size=1)), chunk_index=2)
    assert ["mesh.broadcast", "-", "-"] in [list(row[3:]) for row in chart.table.rows]
    assert "mesh.broadcast" not in chart.finding


def test_sentence_by_hand(tmp_path):
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    assert sequence(run_of(tmp_path / "good", made(mesh_size=3)), chunk_index=2).finding == (
        "Call 2, chunk 2: envelope.send reached rank 1 in 2.0 ms, mesh.broadcast reached rank 2 in 2.0 ms "
        "and rank 3 in 2.0 ms and result.send reached rank 0 in 3.0 ms. The chunk was emitted 99 ms after "
        "its encode began."
    )
    assert sequence(struck(tmp_path / "bad"), chunk_index=3).finding == (
        "Call 3, chunk 3: envelope.send reached rank 1 in 2.0 ms and mesh.broadcast was never taken by "
        "rank 2. Not done: decode and emit on rank 0, generate and result.send on rank 1 and generate on "
        "rank 2. Rank 1 spoke first (RuntimeError); told by notice: ranks 0 and 2."
    )


def test_sentence_of_a_call_of_which_nothing_left_and_nobody_spoke(tmp_path):
    entries = {0: [Span("encode", "main", at(0), at(10), 0, 0, 0)], 1: []}
    chart = sequence(run_of(tmp_path, entries), chunk_index=0)
    assert chart.finding.startswith(
        "Call 0, chunk 0: nothing left rank 0. Not done: preflight, envelope.send"
    )
    assert chart.finding.endswith("result.send on rank 1.")


# The picture


def by_gid(figure):
    (axes,) = figure.axes
    return {artist.get_gid(): artist for artist in [*axes.patches, *axes.lines] if artist.get_gid()}


def test_boxes_and_arrows_stand_on_the_scale_of_time(tmp_path):
    found = by_gid(sequence(run_of(tmp_path, made()), chunk_index=2).figure)
    points = {
        name: found[name].get_ydata()[0]
        for name in ("envelope.send", "mesh.broadcast", "result.send", "emit")
    }
    inch = (points["emit"] - points["envelope.send"]) / 88  # of a millisecond
    assert points["result.send"] - points["envelope.send"] == pytest.approx(69 * inch)
    box = found["rank1.generate"]
    assert box.get_height() == pytest.approx(65 * inch)
    assert box.get_y() - points["envelope.send"] == pytest.approx(4 * inch)
    (x, tail), (to, head) = found["mesh.broadcast.2"]._posA_posB
    assert x == found["mesh.broadcast"].get_xdata()[0] == pytest.approx(box.get_x() + box.get_width() / 2)
    far = found["rank2.generate"]
    assert to == pytest.approx(far.get_x() + far.get_width() / 2)
    assert head - tail == pytest.approx(2 * inch)


def test_what_never_came_ends_in_a_cross_before_its_receiver(tmp_path):
    (tmp_path / "good").mkdir()
    (tmp_path / "bad").mkdir()
    good = by_gid(sequence(run_of(tmp_path / "good", made()), chunk_index=3).figure)
    figure = sequence(struck(tmp_path / "bad"), chunk_index=3).figure
    bad = by_gid(figure)
    (_, whole), (_, lost) = (found["mesh.broadcast.2"]._posA_posB for found in (good, bad))
    assert lost[0] < whole[0]
    crosses = [line for line in figure.axes[0].lines if line.get_marker() == "X"]
    assert [(cross.get_xdata()[0], cross.get_markerfacecolor()) for cross in crosses] == [(lost[0], BAD)]
    assert {"last.0", "last.1", "last.2", "fault"} <= bad.keys()
    assert not {"last.1", "fault"} & good.keys()


def test_what_was_refused_falls_to_the_line_of_the_rank_that_read_it(tmp_path):
    run = refused(tmp_path)
    (message,) = call_story(run, 3).messages
    assert (message.point, message.arrived_ms, message.refused_ms) == ("envelope.send", None, 14)
    chart = sequence(run, chunk_index=3)
    assert "envelope.send was read and refused by rank 1" in chart.finding
    assert ["envelope.send", "1", "refused"] in [list(row[3:]) for row in chart.table.rows]
    found = by_gid(chart.figure)
    (_, tail), (_, head) = found["envelope.send.1"]._posA_posB
    gives_up = found["last.1"]
    assert tail < head == gives_up.get_ydata()[0]
    bars = [line for line in chart.figure.axes[0].lines if line.get_marker() == "|"]
    assert [bar.get_ydata()[0] for bar in bars] == [head]
    assert "message: read, and refused" in texts_of_legend(chart.figure)
    assert "message: never received" not in texts_of_legend(chart.figure)


def test_error_about_another_call_refuses_nothing_of_this_one(tmp_path):
    (message,) = call_story(refused(tmp_path, call_id=2), 3).messages
    assert (message.arrived_ms, message.refused_ms) == (None, None)


def refused(folder, call_id=3):
    """The leader reads envelope 3 and says at 314 ms that it breaks the protocol."""
    entries = {
        rank: [e for e in found if e.chunk_index < 3 or e.name in ("encode", "preflight", "send")]
        for rank, found in made(4).items()
    }
    entries[0].append(Instant("envelope.send", "main", at(311), **CHUNK_3))
    run = run_of(folder, entries, pp.RunFailed("it failed", where={"rank": 1}))
    said = record(1, "RemoteProtocolError", at(314))
    write_record(folder, structs.replace(said, where={"rank": 1, "call_id": call_id}))
    for rank, ms in ((2, 329), (0, 331)):
        write_record(folder, record(rank, "TerminalNotice", at(ms)))
    return run


def texts_of_legend(figure):
    return {text.get_text() for legend in figure.legends for text in legend.get_texts()}


@pytest.mark.parametrize(
    "kind", ["good", "overlapped", "mesh of one", "mesh of three", "struck", "refused", "killed"]
)
def test_text_is_large_enough_and_nowhere_on_top_of_other_text(tmp_path, kind):
    run = {
        "good": lambda: run_of(tmp_path, made()),
        "overlapped": lambda: run_of(tmp_path, made(overlapped=True)),
        "mesh of one": lambda: run_of(tmp_path, made(mesh_size=1)),
        "mesh of three": lambda: run_of(tmp_path, made(mesh_size=3)),
        "struck": lambda: struck(tmp_path),
        "refused": lambda: refused(tmp_path),
        "killed": lambda: failed_run(tmp_path, **KILLED),
    }[kind]()
    assert_legible(sequence(run, chunk_index=3).figure)


def words_and_shapes(figure):
    """Every text of the chart's own, and every box and arrow, each as a box or path in pixels."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    (axes,) = figure.axes
    ways = [Path([to_pixels(patch, end) for end in patch._posA_posB]) for patch in arrows_of(axes)]
    tall = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    ways += [patch.get_transform().transform_path(patch.get_path()) for patch in tall]
    mine = [text for text in axes.texts if text.get_zorder() == 7]
    return [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in mine], ways


def arrows_of(axes):
    return [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]


def to_pixels(patch, place):
    return patch.axes.transData.transform(place)


@pytest.mark.parametrize("told_ms", [13.2, 20])
@pytest.mark.parametrize("mesh_size", [2, 3, 4])
def test_words_of_a_failure_lie_on_no_arrow_and_no_box(tmp_path, mesh_size, told_ms):
    run = struck(tmp_path, mesh_size, told_ms)
    words, ways = words_and_shapes(sequence(run, chunk_index=3).figure)
    assert {"RuntimeError", "TerminalNotice", "mesh.broadcast"} <= {word for word, _ in words}
    assert len(ways) > 4
    assert [word for word, box in words if any(way.intersects_bbox(box) for way in ways)] == []


@pytest.mark.parametrize("mesh_size", [1, 2, 3, 4])
def test_words_of_a_call_in_order_lie_on_no_arrow_and_no_box(tmp_path, mesh_size):
    words, ways = words_and_shapes(
        sequence(run_of(tmp_path, made(mesh_size=mesh_size)), chunk_index=2).figure
    )
    assert {"emit", "result.send"} <= {word.partition(",")[0] for word, _ in words}
    assert [word for word, box in words if any(way.intersects_bbox(box) for way in ways)] == []


def test_chart_shows_itself_with_its_sentence(tmp_path):
    chart = sequence(run_of(tmp_path, made()), chunk_index=2)
    assert f'<img alt="{chart.finding}"' in chart._repr_html_()
    assert "data:image/png;base64," in chart._repr_html_()


def test_the_legend_says_what_the_star_of_a_finished_chunk_is(tmp_path):
    figure = sequence(run_of(tmp_path, made(4)), chunk_index=2).draw()
    keys = [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert "emit: rank 0 hands it out" in keys


def test_what_the_mesh_still_computes_of_the_chunk_before_is_drawn_pale_from_the_encode_on(tmp_path):
    """Without it the envelope seemed to wait for nothing, and no picture had both jobs of the mesh."""
    entries = made(5, mesh_size=2)
    for rank, until in ((1, 325), (2, 299)):  # on rank 2 it had ended
        entries[rank] = [
            structs.replace(entry, end_ns=at(until))
            if entry.name == "generate" and entry.chunk_index == 2
            else entry
            for entry in entries[rank]
        ]
    chart = sequence(run_of(tmp_path, entries), chunk_index=3)
    assert [(step.rank, step.start_ms, step.end_ms) for step in chart.story.before] == [(1, 0.0, 25.0)]
    assert ["0.00", "1", "leader", "generate, chunk 2", "", "25.00 ms"] in chart.table.rows
    (axes,) = chart.figure.axes
    pale = [patch for patch in axes.patches if (patch.get_gid() or "").endswith(".before")]
    assert [(patch.get_gid(), patch.get_alpha()) for patch in pale] == [("rank1.generate.before", 0.35)]
    assert_legible(chart.figure)
