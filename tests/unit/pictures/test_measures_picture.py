"""Pictures of measures: every number is there, readable, and told apart by more than colour."""

from __future__ import annotations

import itertools

import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.text import Text

from ppwork.errors import PlanError
from ppwork.pictures.measures import chunks, depths

SUMMARIES = {
    3: {"overlap_score": 0.98, "efficiency": 0.99},
    1: {"overlap_score": 0.0, "efficiency": 0.47},
    2: {"overlap_score": 0.87, "efficiency": 0.91},
}
LAW = {1: 0.49, 2: 0.95, 3: 1.0}
LAZY = {"at first use": {0: 330.0, 1: 30.0, 2: 30.0}, "before": {0: 31.0, 1: 30.0, 2: 29.0}}


def bars(figure):
    """Heights by series."""
    axes = figure.axes[0]
    return {
        container.get_label(): [bar.get_height() for bar in container.patches]
        for container in axes.containers
    }


def test_both_measures_stand_over_every_depth_in_order():
    assert bars(depths(SUMMARIES).figure) == {
        "overlap score": [0.0, 0.87, 0.98],
        "efficiency": [0.47, 0.91, 0.99],
    }


def test_the_law_is_a_line_over_its_own_bar():
    axes = depths(SUMMARIES, LAW).figure.axes[0]
    (lines,) = axes.collections
    segments = [segment.tolist() for segment in lines.get_segments()]
    assert [segment[0][1] for segment in segments] == [0.49, 0.95, 1.0]
    for segment, bar in zip(segments, axes.containers[1].patches, strict=True):
        assert (segment[0][0], segment[1][0]) == pytest.approx((bar.get_x(), bar.get_x() + bar.get_width()))


def test_time_of_every_chunk_of_every_run_is_drawn():
    assert bars(chunks(LAZY, what="stage 1").figure) == {
        "at first use": [330.0, 30.0, 30.0],
        "before": [31.0, 30.0, 29.0],
    }


@pytest.mark.parametrize("figure", [depths(SUMMARIES, LAW).figure, chunks(LAZY, what="stage 1").figure])
def test_series_differ_in_colour_and_hatch_and_no_text_lies_on_another(figure):
    first, second = (container.patches[0] for container in figure.axes[0].containers)
    assert first.get_facecolor() != second.get_facecolor()
    assert first.get_hatch() != second.get_hatch()
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    shown = [text for text in figure.findobj(Text) if text.get_text() and text.get_visible()]
    assert min(text.get_fontsize() for text in shown) >= 11
    boxes = [(text.get_text(), text.get_window_extent(renderer)) for text in shown]
    for (one, box), (other, far) in itertools.combinations(boxes, 2):
        apart = box.x1 <= far.x0, far.x1 <= box.x0, box.y1 <= far.y0, far.y1 <= box.y0
        assert any(apart), (one, other)


def test_sentences_state_the_numbers():
    assert depths(SUMMARIES).finding == (
        "At depth 1, 2 and 3 the overlap score is 0.00, 0.87 and 0.98, "
        "and the efficiency is 0.47, 0.91 and 0.99."
    )
    assert chunks(LAZY, what="stage 1").finding == (
        "at first use: chunk 0 took longest, 11.0 times the median; "
        "before: no chunk stands out, the longest took 1.0 times the median."
    )


def test_tables_have_every_number_of_the_bars():
    assert depths(SUMMARIES, LAW).table.rows[1] == ["2", "0.87", "0.91", "0.95"]
    assert depths(SUMMARIES).table.head == ["depth", "overlap score", "efficiency"]
    assert chunks(LAZY, what="stage 1").table.rows == [
        ["0", "330.0", "31.0"],
        ["1", "30.0", "30.0"],
        ["2", "30.0", "29.0"],
    ]


def test_runs_without_measures_are_refused():
    with pytest.raises(PlanError, match="depth 2 has no measures"):
        depths({2: {"overlap_score": None, "efficiency": None}})
    with pytest.raises(PlanError, match="nothing to draw"):
        chunks({"empty": {}}, what="stage 1")
    with pytest.raises(PlanError, match="nothing to draw"):
        depths({})
