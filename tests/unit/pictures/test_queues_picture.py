"""Queues on paper: who waits for whom decides the times, and a missing wait is marked."""

from __future__ import annotations

import pytest
from drawn_timelines import by_gid
from legible import assert_legible

from ppwork.errors import PlanError
from ppwork.pictures.queues import MISSING, TORN, queues

ROWS = {"compute": ["fill 1", "fill 2"], "side": ["ready 2"], "internal": ["send 1", "send 2"]}
WAITS = [("fill 1", "send 1"), ("send 1", "fill 2"), ("ready 2", "send 2")]
MS = {"send": 7.0, "ready": 0.0}


def test_an_operation_begins_when_its_queue_is_free_and_its_waits_are_over():
    rows = [line.split() for line in str(queues(ROWS, waits=WAITS, ms=MS).table).splitlines()[2:]]
    times = {" ".join(row[1:3]): (row[3], row[4]) for row in rows}
    assert times == {
        "fill 1": ("0", "5"),
        "ready 2": ("0", "0"),
        "send 1": ("5", "12"),
        "fill 2": ("12", "17"),
        "send 2": ("12", "19"),
    }


def test_a_missing_wait_is_said_and_marked_only_where_it_is_missed():
    picture = queues(ROWS, waits=WAITS, without=[("fill 2", "send 2")], ms=MS)
    assert picture.finding.endswith(
        "send 2 begins at 12 ms, and fill 2 ends at 17 ms: no wait stands between them."
    )
    assert [text.get_text() for text in picture.figure.legends[0].get_texts()] == [TORN]
    held = queues(ROWS, waits=[*WAITS, ("fill 2", "send 2")], without=[("fill 2", "send 2")], ms=MS)
    assert "no wait" not in held.finding
    assert held.figure.legends == []


def test_boxes_marks_and_arrows_are_there_and_legible():
    figure = queues(ROWS, waits=WAITS, without=[("fill 2", "send 2")], ms=MS).figure
    (missing,) = by_gid(figure)["missing fill 2"]
    assert missing.get_linestyle() == "dashed"
    assert MISSING in {text.get_text() for text in figure.axes[0].texts}
    assert {*(name for row in ROWS.values() for name in row), "wait 0", "wait 2"} <= set(by_gid(figure))
    assert_legible(figure)


def test_the_name_of_a_mark_at_the_right_edge_is_not_cut():
    figure = queues(
        {"link": ["send"], "host": ["prints 7"]}, waits=[("send", "prints 7")], ms=MS | {"prints": 0}
    ).figure
    (name,) = [text for text in figure.axes[0].texts if text.get_text() == "prints 7"]
    assert name.get_window_extent().x1 < figure.bbox.x1


@pytest.mark.parametrize(
    ("rows", "waits", "said"),
    [
        ({}, [], "cannot be drawn"),
        ({"a": ["fill", "fill"]}, [], "cannot be drawn"),
        ({"a": ["fill"]}, [("send", "fill")], "'send', which is in no queue"),
        ({"a": ["fill"], "b": ["send"]}, [("send", "fill"), ("fill", "send")], "wait for each other"),
    ],
)
def test_what_cannot_run_is_refused(rows, waits, said):
    with pytest.raises(PlanError, match=said):
        queues(rows, waits=waits)


def test_a_missing_wait_of_an_unknown_operation_is_refused():
    with pytest.raises(PlanError, match="in no queue"):
        queues(ROWS, without=[("fill 3", "send 1")])
