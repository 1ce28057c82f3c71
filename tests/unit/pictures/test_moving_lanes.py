"""Moving lanes: what is in the window, where it stands, and how little a frame costs."""

from __future__ import annotations

import re
import time
from xml.etree import ElementTree as ET

from ppwork.pictures.lanes import LAST, LEFT, RIGHT, WIDE, Bar, moving_lanes

SECOND = 1_000_000_000
NS = "{http://www.w3.org/2000/svg}"


def rects(svg: str) -> list[dict[str, str]]:
    """The bars, without the rows below them."""
    every = ET.fromstring(svg).iter(f"{NS}rect")  # noqa: S314  ours
    return [rect.attrib for rect in every if rect.find(f"{NS}title") is not None]


def test_nothing_is_drawn_before_the_first_bar():
    assert moving_lanes([], 2, SECOND) == ""


def test_the_present_is_at_the_right_and_what_goes_on_reaches_it():
    bars = [Bar(0, 0, SECOND, "send", "#111111"), Bar(1, SECOND, None, "recv <1>", "#222222")]
    svg = moving_lanes(bars, 2, 2 * SECOND)
    ended, going = rects(svg)
    edge = WIDE - RIGHT
    assert float(going["x"]) + float(going["width"]) == edge
    assert float(ended["x"]) == LEFT
    assert float(ended["x"]) + float(ended["width"]) == LEFT + (edge - LEFT) / 2
    assert int(going["y"]) > int(ended["y"])
    assert "recv &lt;1&gt;" in svg
    assert 'aria-label="rank 0 after send; rank 1 in recv &lt;1&gt;"' in svg
    assert "2 s ago" in svg


def test_bars_move_left_as_time_goes_and_leave():
    bars = [Bar(0, n * SECOND // 100, n * SECOND // 100 + 1000, "send", "#111111") for n in range(100)]
    starts = [
        float(rects(moving_lanes(bars, 1, SECOND + later))[-1]["x"]) for later in (0, 1_000_000, 2_000_000)
    ]
    assert starts[0] > starts[1] > starts[2]
    shown = len(rects(moving_lanes(bars, 1, SECOND)))
    assert LAST <= shown < 50


def test_a_frame_of_eight_ranks_costs_milliseconds():
    bars = [
        Bar(rank, n * 1000, n * 1000 + 900, "all_reduce", "#111111") for rank in range(8) for n in range(40)
    ]
    start_ns = time.thread_time_ns()
    svg = moving_lanes(bars, 8, 40_000)
    assert (time.thread_time_ns() - start_ns) / 1e6 < 50
    assert len(re.findall("<title>", svg)) == 8 * 40
