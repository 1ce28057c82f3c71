"""Tables for a notebook: what a log or a program said never becomes markup; a colour stands by its word."""

from __future__ import annotations

import pytest

from ppwork.html_table import APART, html_table
from ppwork.live import STATE_COLOURS, rank_table
from ppwork.live_facts import RankNow


def test_texts_are_escaped_and_heads_name_their_columns():
    shown = html_table(["a<b"], [["<script>"], ["c & d"]], APART)
    assert "<script>" not in shown
    assert [shown.count(part) for part in ("&lt;script&gt;", "c &amp; d", "a&lt;b", "<tr>")] == [1, 1, 1, 3]
    assert shown.count('<th scope="col"') == 1


@pytest.mark.parametrize("state", [*STATE_COLOURS, "idle"])
def test_a_state_is_a_word_and_only_then_a_colour(state):
    shown = rank_table([RankNow(rank=1, role="leader", state=state, doing="generate 3", log=())])
    assert f">{state}</td>" in shown
    assert [colour for colour in STATE_COLOURS.values() if colour in shown] == (
        [STATE_COLOURS[state]] if state in STATE_COLOURS else []
    )
