"""The picture of the rings on paper: operations are boxes, waits are arrows, and what is torn is marked."""

from __future__ import annotations

import pytest
from drawn_timelines import by_gid
from legible import assert_legible

from ppwork.errors import PlanError
from ppwork.pictures.queues import TORN
from ppwork.pictures.rings import edges
from ppwork.timeline.slot_ring import EDGES, on_paper


def test_every_work_is_a_box_and_every_wait_an_arrow():
    paper = on_paper()
    found = by_gid(edges().figure)
    for work in paper.works.values():
        (box,) = found[str(work)]
        assert (box.get_x(), box.get_width()) == pytest.approx((work.start_ms, work.end_ms - work.start_ms))
    assert {f"edge {wait.edge} {wait.after.chunk}" for wait in paper.waits} <= set(found)
    for chunk in range(4):
        ((line,), send) = found[f"transfer {chunk}"], paper.works["send", chunk]
        assert set(line.get_xdata()) == {(send.start_ms + send.end_ms) / 2}, "from a send to its receive"


def test_the_edge_that_is_left_out_is_drawn_as_missing_and_thicker_where_it_does_harm():
    figure = edges(without="reuse").figure
    found = by_gid(figure)
    (harmless,), (missed,) = found["missing edge reuse 2"], found["missing edge reuse 3"]
    assert harmless.get_linewidth() < missed.get_linewidth()
    keys = [text.get_text() for text in figure.legends[0].get_texts()]
    assert {"the writer waits for empty (refill)", "missing (reuse)"} <= set(keys)
    assert TORN in keys
    assert {text.get_text() for text in figure.axes[0].texts} >= {"!t1\ns1"}


def test_sentence_says_what_begins_too_early():
    assert edges().finding == (
        "On paper, with every wait in its place: 16 waits, and no operation touches a slot too early. "
        "It takes 76 ms."
    )
    assert edges(without="reuse").finding == (
        "On paper, without the edge reuse: receive 3 begins at 26 ms, and take 1 ends at 34 ms. "
        "1 collision; both operations of each are marked."
    )
    torn = edges(sides="sender", slots=1, chunks=3, without="send")
    assert torn.finding.endswith("3 collisions; both operations of each are marked.")
    assert "by luck" in edges(without="reuse", chunks=2).finding


def test_a_generated_chunk_is_in_no_slot():
    """Else receive 2 would seem to run over it."""
    said = [text.get_text() for text in edges().figure.axes[0].texts]
    assert "generate 0" in said
    assert not any(text.startswith("generate") and "slot" in text for text in said)


def test_title_explains_the_short_words_that_are_drawn():
    def explained(**chosen):
        return edges(**chosen).figure.axes[0].get_title("left").partition("\n")[2]

    assert explained() == "b1: broadcast chunk 1, t1: take chunk 1, s1: slot 1"
    assert "r1: receive chunk 1" in explained(without="reuse")
    assert "slot" not in explained(slots=1)
    assert explained(sides="sender") == ""


@pytest.mark.parametrize(("slots", "said"), [(1, "one slot"), (2, "chunk k is in slot k mod 2")])
def test_axis_says_which_slot_a_chunk_is_in(slots, said):
    axes = edges(slots=slots).figure.axes[0]
    assert axes.get_xlabel() == f"made-up milliseconds; {said}"


def test_table_has_a_line_for_each_work_and_says_what_was_left_out():
    table = str(edges(without="send", sides="sender", slots=1, chunks=2).table)
    assert "nothing was recorded" in table
    assert "send: fill 0 (left out)" in table
    assert len(table.splitlines()) == 2 + 4


def test_an_edge_that_gives_a_slot_back_is_dashed():
    found = by_gid(edges().figure)
    (forth,), (back,) = found["edge take 1"], found["edge reuse 3"]
    assert (forth.get_linestyle(), back.get_linestyle()) == ("solid", "dashed")


@pytest.mark.parametrize("without", ["", *EDGES])
def test_text_is_large_enough_and_nowhere_on_top_of_other_text(without):
    assert_legible(edges(without=without).figure)


def test_an_edge_that_is_not_there_is_refused():
    with pytest.raises(PlanError, match="no edge 'wait'"):
        edges(without="wait")
