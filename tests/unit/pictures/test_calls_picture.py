"""Moments of a program of one's own: printed, read back, drawn, and the same in words."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from ppwork.errors import PlanError
from ppwork.pictures.calls import Call, calls_of, held_ns, inside, moments
from ppwork.pictures.style import BAD

MS = 1_000_000
SENDER = (
    Call("isend", "16 MB", 0, 2 * MS),
    Call("overwrite", "16 MB", 10 * MS, 15 * MS),
    Call("wait", "16 MB", 50 * MS, 102 * MS),
)
RECEIVER = (Call("recv", "16 MB", 90 * MS, 100 * MS),)
CALLS = {0: SENDER, 1: RECEIVER}
STUCK = {
    0: (Call("send", "both", 0, 2000 * MS, raised=True),),
    1: (Call("send", "both", 5 * MS, None),),
}


def test_what_is_printed_is_read_back_among_other_lines(capsys):
    with inside("isend", "16 MB, first"):
        pass
    print("something else @12 enters send it")  # noqa: T201  a program prints what it likes
    with pytest.raises(RuntimeError, match="timed out"), inside("wait", "16 MB, first"):
        raise RuntimeError("timed out")
    first, second = calls_of({3: capsys.readouterr().out})[3]
    assert (first.name, first.message, first.raised) == ("isend", "16 MB, first", False)
    assert (second.name, second.message, second.raised) == ("wait", "16 MB, first", True)
    assert first.entered_ns <= first.ended_ns <= second.entered_ns <= second.ended_ns


def test_call_that_never_came_back_has_no_end_and_a_repeated_one_is_two():
    printed = "@1 enters recv a\n@5 returns recv a\n@7 enters recv a\n@8 enters recv b\n"
    assert calls_of({0: printed})[0] == (
        Call("recv", "a", 1, 5),
        Call("recv", "a", 7, None),
        Call("recv", "b", 8, None),
    )


def test_end_without_a_beginning_is_passed_over():
    """A log that was cut at its start."""
    assert calls_of({0: "@5 returns recv a\n"})[0] == ()


def test_buffer_is_lent_from_the_first_call_to_the_last_and_a_touch_is_no_call():
    assert held_ns(SENDER, "16 MB") == (0, 102 * MS)
    assert held_ns((Call("recv", "a", 1, None),), "a") == (1, None)
    with pytest.raises(LookupError, match="no call about 'b'"):
        held_ns((Call("overwrite", "b", 1, 2),), "b")


def bars(axes, row):
    """Start and end of the bars of a row, in milliseconds."""
    return [
        (round(p.get_x(), 3), round(p.get_x() + p.get_width(), 3))
        for p in axes.patches
        if p.get_y() < row < p.get_y() + p.get_height()
    ]


def marks(axes):
    return [(line.get_marker(), line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines
            if line.get_marker() in "XP"]  # fmt: skip


def test_upper_row_has_the_calls_and_the_lower_one_the_loan():
    axes = moments(CALLS, title="overwritten").figure.axes[0]
    assert bars(axes, 0) == [(0, 2), (50, 102)]
    assert bars(axes, 1) == [(0, 102)]
    assert bars(axes, 2) == bars(axes, 3) == [(90, 100)]
    assert marks(axes) == [("X", 10, 1)]
    assert axes.get_title(loc="left") == "overwritten"


def test_call_of_microseconds_is_wide_enough_to_be_seen():
    axes = moments({0: (Call("isend", "a", 0, 1000), Call("wait", "a", 0, 1000 * MS))}).figure.axes[0]
    low, high = axes.get_xlim()
    assert min(end - start for start, end in bars(axes, 0)) > 0.003 * (high - low)


def test_call_that_raised_has_a_mark_and_one_without_an_end_goes_to_the_edge():
    axes = moments(STUCK).figure.axes[0]
    assert bars(axes, 0) == [(0, 2000)]
    assert bars(axes, 2) == [(5, 2000)]
    assert marks(axes) == [("P", 2000, 0)]


def test_word_that_has_no_room_in_its_bar_stands_beside_it():
    calls = {0: (Call("isend", "a", 0, MS), Call("wait", "a", 999 * MS, 1000 * MS))}
    axes = moments(calls).figure.axes[0]
    places = {text.get_text(): text for text in axes.texts if text.get_text() in ("isend", "wait", "a")}
    assert places["isend"].get_ha() == "left"
    assert places["wait"].get_ha() == "right"
    assert places["a"].get_ha() == "center"


def test_messages_differ_in_colour_and_hatch():
    two = {0: (Call("send", "a", 0, 40 * MS), Call("send", "b", 50 * MS, 100 * MS))}
    first, second = (p for p in moments(two).figure.axes[0].patches if p.get_y() < 0)
    assert first.get_facecolor() != second.get_facecolor()
    assert first.get_hatch() != second.get_hatch()


@pytest.mark.parametrize("calls", [CALLS, STUCK])
def test_no_text_lies_on_another_and_all_of_it_is_large(calls):
    figure = moments(calls, title="a title").figure
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in shown) >= 11
    boxes = [(text.get_text(), text.get_window_extent(canvas.get_renderer())) for text in shown]
    for (one, box), (other, far) in itertools.combinations(boxes, 2):
        apart = box.x1 <= far.x0, far.x1 <= box.x0, box.y1 <= far.y0, far.y1 <= box.y0
        assert any(apart), (one, other)


def test_table_has_a_line_per_call_in_the_order_of_entering():
    lines = str(moments({**CALLS, 2: STUCK[1]}).table).splitlines()
    assert lines[0].split() == ["rank", "call", "message", "entered", "ms", "back", "ms", "duration", "ms"]
    assert [line.split()[:2] for line in lines[1:]] == [
        ["0", "isend"],
        ["2", "send"],
        ["0", "overwrite"],
        ["0", "wait"],
        ["1", "recv"],
    ]
    assert lines[1].split()[-3:] == ["0.00", "2.00", "2.00"]
    assert lines[2].split()[-2:] == ["never", "-"]
    assert str(moments(STUCK).table).splitlines()[1].endswith("raised")


def test_sentence_says_how_long_the_buffer_was_lent_and_how_much_of_it_in_calls():
    assert moments(CALLS).finding == (
        "Rank 0: 16 MB: buffer lent for 102 ms, 54 ms of it in calls, overwrite meanwhile. "
        "Rank 1: 16 MB: buffer lent for 10 ms, 10 ms of it in calls."
    )
    assert "Rank 0: both: buffer lent for 2000 ms, 2000 ms of it in calls, raised." in moments(STUCK).finding


def test_nothing_to_draw_is_refused():
    with pytest.raises(PlanError, match="no call to draw"):
        moments({0: ()})


def test_what_went_wrong_has_a_colour_that_no_message_takes_first():
    axes = moments(CALLS).figure.axes[0]
    (mark,) = [line for line in axes.lines if line.get_marker() == "X"]
    assert mark.get_markerfacecolor() == BAD
    assert all(patch.get_facecolor() != mark.get_markerfacecolor() for patch in axes.patches)
