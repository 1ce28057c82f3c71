"""The state machine as a picture: every way of the table is drawn, and nothing else."""

from __future__ import annotations

import itertools

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

from ppwork.pictures.state_machine import GOOD, PLACES, arrows, states
from ppwork.pictures.style import BAD
from ppwork.protocol.states import TRANSITIONS, State


def drawn(kind):
    return {p.get_gid(): p for p in states().figure.axes[0].patches if isinstance(p, kind) and p.get_gid()}


def test_every_state_has_a_place():
    assert set(PLACES) == set(TRANSITIONS) == set(State)
    assert set(drawn(FancyBboxPatch)) == set(State)


def test_arrows_are_those_of_the_table():
    ways = {f"{state}-{after}" for state, events in TRANSITIONS.items() for after in events.values()}
    assert set(drawn(FancyArrowPatch)) == ways
    written = [(state, event, after) for state, after, events in arrows() for event in events]
    told = [(state, event, after) for state, events in TRANSITIONS.items() for event, after in events.items()]
    assert sorted(written) == sorted(told)
    texts = sorted(text.get_text() for text in states().figure.axes[0].texts)
    assert texts == sorted([*State, *("\n".join(events) for _, _, events in arrows())])


def test_ways_into_error_differ_in_colour_and_in_line():
    for gid, arrow in drawn(FancyArrowPatch).items():
        bad = gid.endswith("-error")
        assert arrow.get_linestyle() == ("--" if bad else "-")
    colours = {text.get_color() for text in states().figure.axes[0].texts}
    assert {BAD, GOOD} <= colours


def test_no_text_lies_on_another_or_outside():
    figure = states().figure
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    texts = figure.axes[0].texts
    assert min(text.get_fontsize() for text in texts) >= 12
    boxes = [text.get_window_extent(canvas.get_renderer()) for text in texts]
    for box, far in itertools.combinations(boxes, 2):
        assert not box.overlaps(far)
    assert all(figure.bbox.x0 < box.x0 and box.x1 < figure.bbox.x1 for box in boxes)


def test_table_in_words_has_a_line_for_each_arrow_and_for_the_end():
    lines = str(states().table).splitlines()
    assert len(lines) == 1 + len(arrows()) + 1
    assert ["busy", "ready", "last_result"] in [line.split() for line in lines]
    assert lines[-1].split() == ["closed", "-", "nothing"]


def test_sentence():
    assert states().finding == (
        "6 states and 18 transitions: a failure (dashed) leads to error from every state but closed, "
        "and no way leads out of it. A thick frame is an end."
    )
