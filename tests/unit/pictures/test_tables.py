"""Tables for a notebook: what a log or a program said never becomes markup; a colour stands by its word."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from ppwork.lab.live import rank_table
from ppwork.lab.progress import RankState
from ppwork.pictures import tables
from ppwork.pictures.style import STATE_COLOURS
from ppwork.pictures.tables import APART, BOLD, Table


def test_texts_are_escaped_and_heads_name_their_columns():
    shown = Table(["a<b"], [["<script>"], ["c & d"]]).html(APART)
    assert "<script>" not in shown
    assert [shown.count(part) for part in ("&lt;script&gt;", "c &amp; d", "a&lt;b", "<tr>")] == [1, 1, 1, 3]
    assert shown.count('<th scope="col"') == 1


@pytest.mark.parametrize("state", [*STATE_COLOURS, "idle"])
def test_a_state_is_a_word_and_only_then_a_colour(state):
    shown = rank_table([RankState(rank=1, role="leader", state=state, doing="generate 3", log=())])
    assert f">{state}</td>" in shown
    assert [colour for colour in STATE_COLOURS.values() if colour in shown] == (
        [STATE_COLOURS[state]] if state in STATE_COLOURS else []
    )


NUMBERS = Table(
    ["rank", "took", "why"], [["0", "8.1 ms", "a|b"], ["12*", "never", "two\nlines"]], "above", "below"
)
FACTS = Table((), [("period", "30.0 ms"), ("bound", ("none", "red"))])


def test_fixed_width_has_numbers_flush_right_and_lines_above_and_below():
    short = Table(NUMBERS.head, NUMBERS.rows[:1], "above", "below")
    assert str(short).splitlines() == ["above", "rank    took  why", "   0  8.1 ms  a|b", "below"]
    assert str(FACTS).splitlines() == ["period  30.0 ms", "bound   none"]
    assert str(Table(["a", "b"], [])) == "a  b"


def test_a_table_twice_as_long_takes_twice_the_steps(monkeypatch):
    """Each row looked at all rows: a timeline of 1200 chunks took half a minute."""
    steps = []
    monkeypatch.setattr(tables, "NUMBER", Counted(tables.NUMBER.pattern, steps))
    for count in (100, 200):
        str(Table(["chunk", "ms"], [["0", "1.25"]] * count))
    assert len(steps) == 2 * (100 + 200)


class Counted:
    """A pattern that notes each text that it is asked about."""

    def __init__(self, pattern, seen):
        self._pattern, self._seen = re.compile(pattern), seen

    def fullmatch(self, text):
        self._seen.append(text)
        return self._pattern.fullmatch(text)


def test_markdown_keeps_a_row_a_line_and_a_bar_a_bar():
    assert NUMBERS.markdown().splitlines() == [
        "| rank | took | why |",
        "|---|---|---|",
        "| 0 | 8.1 ms | a\\|b |",
        "| 12* | never | two lines |",
    ]


def test_terminal_wraps_long_texts_and_takes_no_text_for_markup():
    out = io.StringIO()
    texts = Table(["id", "text"], [[("F01", BOLD), "[red] " + "word " * 12]])
    Console(file=out, width=40, force_terminal=True, force_jupyter=False).print(texts, FACTS)
    lines = out.getvalue().splitlines()
    assert len(lines) == 1 + 2 + 2
    assert "[red] word" in lines[1]
    assert "\x1b[1mF01" in lines[1]
    assert "\x1b[31mnone" in lines[-1]


def test_a_table_without_heads_has_one_in_each_row_as_html():
    assert FACTS.html("") == (
        '<table><tr><th scope="row" style="">period</th><td style="">30.0 ms</td></tr>'
        '<tr><th scope="row" style="">bound</th><td style="; color:red">none</td></tr></table>'
    )
    assert NUMBERS._repr_html_().startswith("<p>above</p><table>")
