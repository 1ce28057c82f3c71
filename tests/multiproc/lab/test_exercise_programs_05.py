"""The exercises of lesson 05 on ranks: each usual mistake gets its hint."""

from __future__ import annotations

import pytest
from solved import changed, right_program, verdict_of

OVERLAPS, AHEAD = right_program("05.4"), right_program("05.1")
GENERATES = "        time.sleep(0.020)  # generate\n"
TAKES = "            handle.wait()\n"
POSTS = AHEAD.partition(TAKES)[2].partition(GENERATES)[0]


@pytest.mark.parametrize(
    ("exercise", "source", "hint"),
    [
        (
            "05.4",
            changed(OVERLAPS, ("if k > 0:", "if k < CHUNKS:")),
            "had nothing to do until then",
        ),
        (
            "05.4",
            changed(OVERLAPS, ("(CHUNKS + 1)", "(CHUNKS + 2)"), ("k > 0", "k > 1")),
            "more than 2 chunks",
        ),
        (
            "05.4",
            changed(OVERLAPS, ("            leaving.wait()\n", "")),
            "never waits for the handle of isend",
        ),
        (
            "05.4",
            changed(
                OVERLAPS,
                ("dist.isend(", "dist.send("),
                ("leaving.wait()", "pass"),
                ("coming = dist.irecv(result, src=1)", "coming = None"),
                ("coming.wait()", "dist.recv(result, src=1)"),
            ),
            "All ranks were in send",
        ),
        (
            "05.1",
            changed(AHEAD, ("torch.empty(2, 2, SIZE)", "torch.empty(1, 2, SIZE).expand(2, 2, SIZE)")),
            "two buffers",
        ),
        ("05.1", changed(AHEAD, (POSTS + GENERATES, GENERATES + POSTS)), "posts the receive for both halves"),
        (
            "05.1",
            changed(
                AHEAD,
                (GENERATES, "        for handle in posted:\n" + TAKES + "        posted = []\n" + GENERATES),
            ),
            "wait for it late",
        ),
    ],
    ids=[
        "in turns",
        "too deep",
        "forgotten",
        "both send",
        "one buffer",
        "not ahead",
        "waits early",
    ],
)
def test_program_and_its_hint(tmp_path, exercise, source, hint):
    verdict = verdict_of(exercise, source, tmp_path, ranks=3 if exercise == "05.1" else 2)
    assert not verdict.right
    assert hint in verdict.hint
