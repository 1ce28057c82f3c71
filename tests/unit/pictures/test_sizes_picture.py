"""The time of a message against its size: dots that were measured, and the law as a line."""

from __future__ import annotations

import pytest
from legible import assert_legible

from ppwork.errors import PlanError
from ppwork.pictures.sizes import sizes

TIMES = {10_000_010: 10_050.0, 10: 50.0, 1_000_010: 300.0}


def test_dots_were_measured_and_the_line_goes_through_the_ends():
    (axes,) = sizes(TIMES).figure.axes
    law, both, dots = axes.lines
    assert list(dots.get_xydata()[:, 0]) == sorted(TIMES)
    assert list(dots.get_ydata()) == [50.0, 300.0, 10_050.0]
    assert list(law.get_ydata()[[0, -1]]) == pytest.approx([50.0, 10_050.0])
    assert both.get_xdata()[0] == pytest.approx(50_000)
    assert (axes.get_xscale(), axes.get_yscale()) == ("log", "log")


def test_times_within_one_decade_stand_between_two_steps_with_plain_numbers():
    paper = sizes({4: 49.0, 1_000_000: 188.0}).figure
    (axes,) = paper.axes
    paper.draw_without_rendering()
    assert axes.get_ylim() == (10.0, 1000.0)
    assert [label.get_text() for label in axes.get_yticklabels()][1:-1] == ["10", "100", "1,000"]
    assert not any(label.get_text() for label in axes.get_yticklabels(minor=True))


def test_sentence_and_table_say_the_law():
    picture = sizes(TIMES)
    said = "50 us for a message, and 1000 MB/s for its bytes, which cost more from 50 kB on."
    assert picture.finding == said
    assert picture.table.rows[1] == ["1000010", "300", "1050"]


def test_law_through_a_size_in_the_middle_says_how_far_off_it_is_at_the_largest():
    picture = sizes(TIMES, through=1_000_010)
    assert picture.finding.endswith(
        "and 4000 MB/s for its bytes, which cost more from 200 kB on. "
        "10,000,010 B take 10050 us, 3.9 times the solid line."
    )
    (axes,) = picture.figure.axes
    assert axes.lines[0].get_ydata()[-1] == pytest.approx(2550.0)


def test_messages_after_a_rest_have_a_law_of_their_own_through_what_was_measured():
    """It had the slope of the other line, a third below the second message that was measured."""
    picture = sizes(TIMES, through=1_000_010, rested={20: 235.0, 1_000_010: 735.0})
    said = "After a rest: 235 us for a message, and 2000 MB/s for its bytes, which cost more from 470 kB on."
    assert said in picture.finding
    (axes,) = picture.figure.axes
    law, rested, equal, equal_rested, _, hollow = axes.lines
    assert list(map(tuple, hollow.get_xydata())) == [(20, 235.0), (1_000_010, 735.0)]
    assert hollow.get_markerfacecolor() == "white"
    ends = [tuple(rested.get_xydata()[at]) for at in (0, -1)]
    assert ends == [pytest.approx((20, 235.0)), pytest.approx((1_000_010, 735.0), rel=1e-3)]
    assert [line.get_xdata()[0] for line in (equal, equal_rested)] == pytest.approx([2e5, 4.7e5], rel=1e-3)
    assert [text.get_text() for text in axes.texts] == ["200 kB", "470 kB"]
    colors = [line.get_color() for line in (law, equal, rested, equal_rested, hollow)]
    assert colors[0] == colors[1] != colors[2] == colors[3] == colors[4]
    assert_legible(picture.figure)


def test_size_beyond_all_that_were_measured_after_a_rest_is_said_to_be():
    picture = sizes(TIMES, through=1_000_010, rested={20: 1500.0, 1_000_010: 2000.0})
    assert "which cost more from 3.0 MB on, more than was measured." in picture.finding
    (axes,) = picture.figure.axes
    assert [text.get_text() for text in axes.texts] == ["200 kB"]  # none where its law is not drawn


def test_messages_after_a_rest_without_a_law_are_dots():
    """On a busy machine the small one may take longer."""
    picture = sizes(TIMES, through=1_000_010, rested={20: 350.0, 1_000_010: 340.0})
    assert "rest" not in picture.finding
    (axes,) = picture.figure.axes
    assert [text.get_text() for text in axes.texts] == ["200 kB"]
    assert [line.get_markerfacecolor() for line in axes.lines[-1:]] == ["white"]


@pytest.mark.parametrize("times", [{}, {4: 50.0}, {0: 50.0, 4: 60.0}, {4: 50.0, 1000: 50.0}])
def test_times_without_a_law_are_refused(times):
    with pytest.raises(PlanError, match="no law"):
        sizes(times)
