"""Broadcast time against mesh size: medians as bars, chunks as dots, models as lines."""

from __future__ import annotations

import pytest

from ppwork.errors import PlanError
from ppwork.pictures.measures import mesh

MEASURED = {3: {0: 4.0, 1: 6.0, 2: 5.0}, 2: {0: 2.0, 1: 9.0, 2: 3.0}}
ROUNDS = {1: 0.0, 2: 3.0, 3: 6.0, 8: 9.0}
MODELS = {"in rounds": ROUNDS, "one by one": {1: 0.0, 2: 3.0, 8: 21.0}}


def test_bars_are_medians_and_dots_are_chunks():
    (axes,) = mesh(MEASURED, MODELS).figure.axes
    bars = {round(bar.get_x() + bar.get_width() / 2): bar.get_height() for bar in axes.patches}
    assert bars == {2: 3.0, 3: 5.0}
    dots, line, other = axes.lines
    assert sorted(dots.get_ydata()) == [2.0, 3.0, 4.0, 5.0, 6.0, 9.0]
    assert [round(x) for x in dots.get_xdata()] == [3, 3, 3, 2, 2, 2]
    assert list(zip(line.get_xdata(), line.get_ydata(), strict=True)) == list(ROUNDS.items())
    assert (line.get_label(), other.get_label()) == tuple(MODELS)
    assert other.get_ydata()[-1] == 21.0
    assert line.get_marker() != other.get_marker()


def test_axis_says_what_was_measured_where():
    (axes,) = mesh(MEASURED, MODELS).figure.axes
    assert [label.get_text() for label in axes.get_xticklabels()] == ["1", "2\n3.0 ms", "3\n5.0 ms", "8"]
    assert axes.get_ylim() == (0, pytest.approx(1.15 * 21.0))


def test_sentence():
    assert mesh(MEASURED, MODELS).finding == (
        "Median time of the broadcast by mesh size: 3.0 ms at 2, 5.0 ms at 3; the models say: "
        "in rounds 9.0 ms at 8, one by one 21.0 ms at 8."
    )


@pytest.mark.parametrize("measured", [{}, {2: {}}])
def test_nothing_to_draw_is_refused(measured):
    with pytest.raises(PlanError, match="nothing to draw"):
        mesh(measured, MODELS)


def test_table_has_a_dash_where_nothing_was_measured():
    table = mesh(MEASURED, MODELS).table
    assert table.head == ["mesh size", "measured, median", "in rounds", "one by one"]
    assert table.rows == [
        ["1", "-", "0.0", "0.0"],
        ["2", "3.0", "3.0", "3.0"],
        ["3", "5.0", "6.0", "-"],
        ["8", "-", "9.0", "21.0"],
    ]
