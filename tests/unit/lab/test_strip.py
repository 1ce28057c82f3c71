"""A strip: boxes where their times are, letters that have room, lines that are refused with their reason."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from ppwork.errors import PlanError
from ppwork.lab.course.strip import WIDTH, strip
from ppwork.lab.course.text import html_of

PLAIN = """axis 0-80 ms
# depth 2
rank 0: 0-15 decode 4 | 15-30 encode 6 | 30-40 idle!
rank 1: 0-30 generate 5 | 50-80 g6
brace 30-50 two hops
arrow rank 0@30 > rank 1@50 envelope 6
line 40 the timeout
"""


class Elements(HTMLParser):
    """The attributes of a picture's elements by their names, and its texts."""

    def __init__(self, text):
        super().__init__()
        self.found, self.words = {}, []
        self.feed(strip(text))

    def handle_starttag(self, tag, attrs):
        self.found.setdefault(tag, []).append(dict(attrs))

    def handle_data(self, data):
        self.words.append(data)


def boxes(text):
    return Elements(text).found["rect"]


def test_boxes_stand_where_their_times_are_and_each_lane_below_the_one_before():
    decode, encode, idle, first, second = (
        {key: float(box[key]) for key in ("x", "y", "width")} for box in boxes(PLAIN)
    )
    assert decode["width"] == pytest.approx(encode["width"])
    assert first["width"] == pytest.approx(2 * encode["width"], abs=0.2)
    assert encode["x"] == pytest.approx(decode["x"] + decode["width"], abs=0.2)
    assert second["x"] + second["width"] < WIDTH
    assert decode["y"] == encode["y"] == idle["y"] < first["y"] == second["y"]


def test_a_colon_in_a_label_makes_no_lane_and_takes_no_room():
    said = PLAIN.replace("two hops", "two hops: down, up").replace("timeout", "timeout: none came")
    assert boxes(said) == boxes(PLAIN)
    assert "two hops: down, up" in Elements(said).words


def test_the_picture_says_all_of_its_words_and_is_read_aloud():
    picture = Elements(PLAIN)
    labels = ["depth 2", "decode 4", "idle", "g6", "two hops", "envelope 6", "the timeout", "ms", "0", "80"]
    assert set(labels) <= set(picture.words)
    (svg,) = picture.found["svg"]
    assert svg["role"] == "img"
    assert "envelope 6" in svg["aria-label"]


def test_what_is_wrong_has_a_colour_of_its_own_and_a_chunk_of_one_letter_that_of_its_step():
    decode, encode, idle, generate, short = (box["fill"] for box in boxes(PLAIN))
    assert short == generate
    assert len({decode, encode, idle, generate}) == 4
    (pause,) = boxes("axis 0-4\na: 0-4 wait")
    assert pause["fill"] == "none"


def test_an_axis_without_a_unit_is_not_drawn():
    assert Elements("axis 0-4\nrank 0: 0-4 send").words == ["rank 0", "send"]


def test_braces_share_a_row():
    plain, braced = (
        Elements("axis 0-9\na: 0-9 send"),
        Elements("axis 0-9\na: 0-9 send\nbrace 0-4 one: 1 | 4-9 two"),
    )
    assert {"one: 1", "two"} <= set(braced.words)
    assert plain.found["rect"] == braced.found["rect"]
    heights = {text["y"] for text in braced.found["text"][1:] if text["text-anchor"] == "middle"}
    assert len(heights) == 2


def test_words_are_text_whatever_stands_in_them():
    found = strip("axis 0-9\n<b>: 0-9 </text><script>1")
    assert "<script>" not in found
    assert "<b>" not in found


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rank 0: 0-4 send", "axis 0-80 ms"),
        ("axis 4-4 ms", "axis 0-80 ms"),
        ("axis 0-4\nsomething", "a lane, `# headline`"),
        ("axis 0-4\nrank 0: send", "as in 15-30 encode 6"),
        ("axis 0-4\nbrace 0-4", "as in 0-40 one period"),
        ("axis 0-4\nrank 0: 0-5 send", "goes from 0 to 4"),
        ("axis 0-400\nrank 0: 0-5 send", "has room for"),
        ("axis 0-4\nrank 0: 0-4 send\narrow rank 0@1 > rank 1@2", "'rank 1': a lane above the arrow"),
    ],
)
def test_a_line_that_cannot_be_drawn_is_refused_with_what_to_check(text, said):
    with pytest.raises(PlanError, match="A strip has the line") as refused:
        strip(text)
    assert said in refused.value.check_first


def test_a_block_of_a_slides_text_becomes_a_strip_and_other_code_stays_code():
    found = html_of(f"Look:\n\n```strip\n{PLAIN}```\n\n```\naxis 0-4\n```")
    assert found.count('<svg class="strip"') == 1
    assert "<pre><code>axis 0-4" in found
