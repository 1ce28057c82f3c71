"""Graphs of who waits for whom: what is said of them, and what is marked."""

from __future__ import annotations

import pytest
from drawn_timelines import texts
from legible import assert_legible
from matplotlib.patches import Circle, FancyArrowPatch

from ppwork.errors import PlanError
from ppwork.pictures.wait_graphs import NOBODY, UNSEEN, waits

END = {0: [2], 1: [2], 2: []}
CIRCLE = {0: [2], 1: [0], 2: [1]}


@pytest.mark.parametrize(
    ("of", "said"),
    [
        (END, "rank 2 waits for nobody"),
        ({0: [], 1: [2], 2: []}, "ranks 0 and 2 wait for nobody"),
        (CIRCLE, "ranks 0, 1 and 2 wait for each other"),
        ({0: [1], 1: [2], 2: [1]}, "ranks 1 and 2 wait for each other"),
    ],
)
def test_it_says_where_the_arrows_end(of, said):
    assert waits({"one of two:\nlook at it": of}).finding == f"One of two: {said}."


def test_a_rank_without_an_arrow_is_marked_and_each_wait_is_an_arrow():
    figure = waits({"an end": END, "a circle": CIRCLE}).figure
    arrows = [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]
    assert len(arrows) == 5
    thick = [c for c in figure.axes[0].patches if isinstance(c, Circle) and c.get_linewidth() > 2]
    assert [circle.get_gid() for circle in thick] == ["rank 2"]
    assert NOBODY in texts(figure)
    assert_legible(figure)


def test_a_wait_that_torch_does_not_see_is_dashed():
    figure = waits({"a lock": {0: [1], 1: [0]}}, unseen=[(1, 0)]).figure
    styles = {
        p.get_gid(): p.get_linestyle() for p in figure.axes[0].patches if isinstance(p, FancyArrowPatch)
    }
    assert styles == {"0 waits for 1": "solid", "1 waits for 0": "--"}
    assert UNSEEN in texts(figure)
    assert NOBODY not in texts(figure)
    assert_legible(figure)


@pytest.mark.parametrize("of", [{0: []}, {0: [0], 1: []}, {0: [2], 1: []}])
def test_what_cannot_be_drawn_is_refused(of):
    with pytest.raises(PlanError, match="graphs of waits"):
        waits({"wrong": of})
