"""Ways to split inference: no GPU does two things at once; sums and blocks agree."""

from __future__ import annotations

from itertools import pairwise

import pytest
from matplotlib.text import Text

from ppwork.errors import PlanError
from ppwork.pictures.splits import Split, splits

TIMES = (10.0, 60.0, 10.0)


@pytest.mark.parametrize("generating", [[0], [1], [0, 1], [1, 2]], ids=str)
def test_no_gpu_works_on_two_chunks_and_the_busiest_never_pauses(generating):
    way = Split("a way", generating, TIMES)
    blocks = sorted(way.blocks, key=lambda block: block.start)
    gaps = {}
    for gpu in {block.gpu for block in blocks}:
        own = [block for block in blocks if block.gpu == gpu]
        gaps[gpu] = [later.start - earlier.end for earlier, later in pairwise(own)]
        assert min(gaps[gpu]) >= 0
    assert any(not any(of_gpu) for of_gpu in gaps.values())
    out = [block.end for block in blocks if block.step == "d"]
    assert out[0] == way.latency_ms
    assert {later - earlier for earlier, later in pairwise(out)} == {way.period_ms}


def test_the_sentence_and_the_brackets_say_latency_and_period():
    picture = splits(encode_ms=10, generate_ms=60, decode_ms=10)
    assert "latency 50 and period 30 ms on 3 GPUs, pipeline and mesh of 2" in picture.finding
    assert picture.table.rows[2] == ["2 GPUs, pipeline", "80", "60"]
    words = [text.get_text() for text in picture.figure.findobj(Text)]
    assert "latency of chunk 2: 50 ms" in words
    assert "no work: chunk 2 needs the state of chunk 1" in words
    assert [word.split(" ms")[0] for word in words if word.startswith("period")] == [
        f"period: {ms}" for ms in (80, 80, 60, 50, 30)
    ]


@pytest.mark.parametrize("times", [(10, 30, 10), (0, 60, 10)], ids=["GPU 0 is slower", "nothing to encode"])
def test_times_that_it_would_draw_wrong_are_refused(times):
    encode_ms, generate_ms, decode_ms = times
    with pytest.raises(PlanError, match="slower than GPU 0"):
        splits(encode_ms=encode_ms, generate_ms=generate_ms, decode_ms=decode_ms)
