"""The exercises of lesson 04 on ranks: the right program passes, each usual mistake gets its hint."""

from __future__ import annotations

import pytest
from solved import right_program, verdict_of

LOST, TIMED = right_program("04.1"), right_program("04.4")
REMEMBERS = "        remember(k)  # rank 0 decodes and encodes meanwhile\n"
SENDS = "        dist.send(chunk, dst=0)\n"
MARK = "stream.submit(time.monotonic)"


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (LOST.replace(SENDS + REMEMBERS, REMEMBERS + SENDS), "generate is 20 of them"),
        (LOST.replace(REMEMBERS, "        history.append(k)\n"), "in no gap"),
        (LOST.replace(REMEMBERS, ""), "must still print: remembered 8 chunks"),
    ],
    ids=["in the way", "work left out", "not called"],
)
def test_where_10_ms_went(tmp_path, source, hint):
    verdict = verdict_of("04.1", source, tmp_path)
    assert not verdict.right
    assert hint in verdict.hint


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (
            TIMED.replace("end.result() - begin.result()", "end - begin").replace(MARK, "time.monotonic()"),
            "the time of the launch",
        ),
        (
            TIMED.replace("        dist.recv(chunk, src=0)\n", "        begin = time.monotonic()\n" * 2)
            .replace(f"        begin = {MARK}", "        dist.recv(chunk, src=0)")
            .replace("begin.result()", "begin"),
            "stood in recv",
        ),
        (
            TIMED.replace(f"begin = {MARK}", "begin = time.monotonic()").replace("begin.result()", "begin"),
            "that its stream runs before it",
        ),
    ],
    ids=["the launch", "rank 0, too", "the kernel before it, too"],
)
def test_time_of_a_stage_that_was_only_launched(tmp_path, source, hint):
    verdict = verdict_of("04.4", source, tmp_path)
    assert not verdict.right
    assert hint in verdict.hint
