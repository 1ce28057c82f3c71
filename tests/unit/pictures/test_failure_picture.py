"""The picture of a failure: every moment at its place, nothing on top of anything, and the same in words."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

import pytest
from failed_runs import KILLED, failed_run
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from ppwork.diagnosis.story import failure_story
from ppwork.errors import PlanError, duration
from ppwork.pictures.failures import failure
from ppwork.pictures.style import BAD
from ppwork.plan import Plan
from ppwork.records.run import Run

RAISED = {
    "notices": {1: (7.7, "RuntimeError"), 2: (17.0, "TerminalNotice"), 0: (28.0, "TerminalNotice")},
    "codes": {0: 3, 1: 1, 2: 3},
    "injected_on": 1,
    "named": 1,
}
"""The leader raises, and tells the others."""
FROZEN = {
    "notices": {0: (3200.0, "PeerFrozenError"), 1: (3100.0, "PeerFrozenError")},
    "codes": {0: 3, 1: 3},
    "injected_on": 2,
}


@pytest.fixture
def story(tmp_path_factory):
    return lambda **case: failure_story(failed_run(tmp_path_factory.mktemp("run"), **case))


def marks(axes, shape):
    return {line.get_ydata()[0]: line.get_xdata()[0] for line in axes.lines if line.get_marker() == shape}


def hatched(axes):
    return [(p.get_x(), p.get_x() + p.get_width()) for p in axes.patches if p.get_hatch()]


def test_moments_stand_at_their_place_in_milliseconds(story):
    axes = failure({"killed": story(**KILLED)}).figure.axes[0]
    assert marks(axes, "P") == pytest.approx({0: 18.5, 1: 8.0})
    assert list(marks(axes, "p").values()) == [0]
    assert [place for row, place in marks(axes, "p").items() if 1.5 < row < 2.0] == [0]
    assert hatched(axes) == [
        (0.0, pytest.approx(18.5)),
        (0.0, pytest.approx(8.0)),
    ]  # the dead wait for nothing
    assert "milliseconds" in axes.get_xlabel()
    assert axes.get_title(loc="left") == "killed"


def test_the_rank_in_which_it_broke_is_never_shown_as_one_that_does_not_know(story):
    axes = failure({"raised": story(**RAISED)}).figure.axes[0]
    assert marks(axes, "P") == pytest.approx({0: 28.0, 1: 7.7, 2: 17.0})
    assert hatched(axes) == [(0.0, pytest.approx(28.0)), (0.0, pytest.approx(17.0))]


def test_a_rank_that_loops_works_until_it_is_stuck_and_its_peer_waits_in_its_stage(story):
    told = story(**FROZEN)
    loops = replace(told.ranks[2], unfinished_s=-0.01, noticed_s=3.0, error_type="StuckError")
    lost = replace(told.ranks[1], work=((-0.01, 3.09),), error_type="PeerLostError")
    stuck = replace(told, ranks=(told.ranks[0], lost, loops))
    axes = failure(stuck).figure.axes[0]
    longest = {
        round(bar.get_y() + bar.get_height() / 2): (bar.get_hatch(), bar.get_x() + bar.get_width())
        for bar in axes.patches
        if bar.get_height() < 0.5 and bar.get_width() > 1
    }
    assert longest == {1: ("..", pytest.approx(3.09)), 2: (None, pytest.approx(3.0))}


def test_on_the_left_a_rank_that_waited_has_for_whom_and_the_struck_one_what_it_did(story):
    told = story(**KILLED)
    ranks = (told.ranks[0], replace(told.ranks[1], waited="rank 2"), replace(told.ranks[2], waited="rank 1"))
    said = [text.get_text() for text in failure(replace(told, ranks=ranks)).figure.findobj(Text)]
    assert {"receive on up_pg", "waits for rank 2", "after generate, chunk 2"} <= set(said)


def test_work_is_drawn_only_as_far_as_the_axis_goes(story):
    axes = failure({"killed": story(**KILLED)}).figure.axes[0]
    low, high = axes.get_xlim()
    solid = [p for p in axes.patches if not p.get_hatch()]
    assert solid
    assert all(low <= p.get_x() and p.get_x() + p.get_width() <= high + 1e-9 for p in solid)


def test_two_failures_share_one_axis_in_seconds(story):
    killed, frozen = story(**KILLED), story(**FROZEN)
    figure = failure({"killed": killed, "frozen": frozen}).figure
    above, below = figure.axes
    assert above.get_xlim() == below.get_xlim()
    assert "seconds" in below.get_xlabel()
    assert above.get_xlabel() == ""
    assert marks(below, "P") == pytest.approx({0: 3.2, 1: 3.1})


def test_a_peer_that_never_spoke_does_not_know_until_the_end_of_the_axis(story):
    axes = failure({"deaf": story(**{**KILLED, "notices": {1: (8.0, "PeerLostError")}})}).figure.axes[0]
    assert hatched(axes)[0] == (0.0, pytest.approx(axes.get_xlim()[1]))


def test_no_text_lies_on_another_or_leaves_the_figure_and_none_is_small(story):
    widest = {"notices": {0: (118.0, "PeerFrozenError")}, "codes": {0: -15}, "injected_on": 2}
    figure = failure({"killed": story(**KILLED), "frozen": story(**FROZEN), "ended": story(**widest)}).figure
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in shown) >= 10
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in shown]
    width, height = figure.bbox.width, figure.bbox.height
    assert all(box.x0 >= 0 and box.x1 <= width and box.y0 >= 0 and box.y1 <= height for _, box in boxes)
    for (one, box), (other, far) in itertools.combinations(boxes, 2):
        apart = box.x1 <= far.x0, far.x1 <= box.x0, box.y1 <= far.y0, far.y1 <= box.y0
        assert any(apart), (one, other)


def test_kinds_are_told_apart_by_more_than_colour(story):
    axes = failure({"killed": story(**KILLED)}).figure.axes[0]
    (line,) = [line for line in axes.lines if line.get_linestyle() == "--"]
    assert line.get_color() == BAD
    assert {mark.get_marker() for mark in axes.lines} == {"None", "p", "P"}
    assert {p.get_hatch() for p in axes.patches} == {None, "////"}


def test_the_table_has_a_line_per_rank_first_to_notice_first(story):
    table = str(failure(story(**KILLED)).table)
    head, *lines, legend = table.splitlines()
    assert re.split(r"\s{2,}", head.strip()) == [
        "rank",
        "role",
        "at that moment",
        "noticed after",
        "took it for",
        "how it ended",
    ]
    assert [line.split()[0] for line in lines] == ["1", "0", "2*"]
    assert "generate, chunk 3" in lines[0]
    assert "8.0 ms" in lines[0]
    assert "PeerLostError" in lines[0]
    assert "never" in lines[2]
    assert lines[2].endswith("SIGKILL")
    assert "after generate, chunk 2" in lines[2]
    assert legend == "* here it broke; after: the last step that is on record"


def test_the_finding_names_the_struck_the_first_and_the_last(story):
    assert failure(story(**KILLED)).finding == (
        "F13 struck rank 2 (follower: after generate, chunk 2); rank 1 noticed first, after 8.0 ms "
        "(PeerLostError), and the last was rank 0, after 18 ms (TerminalNotice)."
    )
    one = story(**{**KILLED, "notices": {1: (1200.0, "PeerLostError")}})
    assert failure(one).finding.endswith("rank 1 noticed first, after 1.20 s (PeerLostError).")
    assert failure(story(**RAISED)).finding == (
        "F13 struck rank 1 (leader: generate, chunk 3); it wrote its record after 7.7 ms; of the others "
        "rank 2 noticed first, after 17 ms (TerminalNotice), and the last was rank 0, after 28 ms "
        "(TerminalNotice)."
    )
    none = story(notices={}, codes={2: -9}, injected_on=None)
    assert (
        failure(none).finding
        == "A failure struck rank 2 (follower: after generate, chunk 2); no other rank noticed."
    )


@pytest.mark.parametrize(
    ("seconds", "said"), [(0.0004, "0.4 ms"), (0.25, "250 ms"), (1.25, "1.2 s"), (60.0, "60.0 s")]
)
def test_durations_read_as_people_say_them(seconds, said):
    assert duration(seconds) == said


def test_several_failures_are_told_apart_by_their_titles_in_sentence_and_table(story):
    killed, frozen = story(**KILLED), story(**FROZEN)
    both = failure({"killed": killed, "frozen": frozen})
    assert both.finding == f"killed: {failure(killed).finding} frozen: {failure(frozen).finding}"
    assert [row[0] for row in both.table.rows] == ["killed"] * 3 + ["frozen"] * 3


def test_a_run_is_drawn_as_its_story_is(tmp_path):
    run = failed_run(tmp_path, **KILLED)
    picture = failure(run)
    assert picture.finding == failure(failure_story(run)).finding
    assert picture.figure.axes[0].get_title(loc="left") == "F13"


@pytest.mark.parametrize("case", [KILLED, {**RAISED, "injected_on": None}], ids=["killed", "raised"])
def test_a_folder_alone_is_drawn_as_the_run_that_failed_in_it(tmp_path, case):
    run = failed_run(tmp_path, **case)
    said = failure(run).finding
    for later in (tmp_path, str(tmp_path), Run(tmp_path, None)):
        assert failure(later).finding == said
    assert failure({"later": str(tmp_path)}).finding == f"later: {said}"


def test_a_folder_in_which_nothing_failed_is_refused(tmp_path):
    with pytest.raises(PlanError, match="cannot be read"):
        failure(tmp_path / "missing")
    Plan(mesh_size=2, chunks=8).save(tmp_path)
    with pytest.raises(PlanError, match=r"No rank of .* is known to have failed"):
        failure(tmp_path)


def test_nothing_to_draw_is_refused():
    with pytest.raises(PlanError, match="no failure to draw"):
        failure({})
