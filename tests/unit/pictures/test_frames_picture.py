"""The bytes of a message: true to what a link sends, and legible with one tensor or with many."""

from __future__ import annotations

import pytest
from legible import assert_legible

import ppwork as pp
from ppwork.errors import LocalProtocolError
from ppwork.pictures.frames import fields, frame
from ppwork.protocol.header import HEADER_BYTES

LARGE = {"latents": ("bfloat16", (1, 16, 4, 12, 20))}
SMALL = {"mask": ("bool", (12, 20)), "sigmas": ("float32", (4,))}
MANY = {f"t{number}": ("float32", (100 * (1 + number % 2 * 40),)) for number in range(40)}


def test_the_fields_fill_the_header():
    assert [field.offset for field in fields()] == [0, 4, 6, 7, 8, 10, 12, 16, 20, 24, 32, 40, 48, 56, 60]
    assert fields()[-1].offset + fields()[-1].size == HEADER_BYTES


def test_small_tensors_ride_in_the_frame_and_a_large_one_comes_after_it():
    picture = pp.pictures.frame({**LARGE, **SMALL}, metadata={"prompt": "a cat"})
    assert "2 of 3 tensors ride in the frame. Transfers after it: 1, of 30,720 bytes." in picture.finding
    rows = str(picture.table)
    assert "1  mask               2,048     240" in rows
    assert "2  latents                0  30,720" in rows


def test_a_body_longer_than_its_room_goes_on_in_a_second_transfer():
    assert "rest of the body" in str(frame(SMALL, metadata={"notes": "x" * 5000}).table)


@pytest.mark.parametrize("tensors", [{}, LARGE, {**LARGE, **SMALL}, MANY], ids=[0, 1, 3, 40])
def test_text_is_legible(tensors):
    assert_legible(frame(tensors).figure)


def test_what_no_link_would_send_is_refused():
    with pytest.raises(LocalProtocolError, match="float31"):
        frame({"x": ("float31", (1,))})
