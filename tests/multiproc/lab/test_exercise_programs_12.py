"""The programs of lesson 12: each usual mistake gets its hint, and another right way none."""

from __future__ import annotations

import pytest
from solved import changed, right_program, verdict_of

REPORT, ROW = right_program("12.3"), right_program("12.4")
TAKES_RESULT, TAKES_REPORT = "        dist.recv(result, src=1)\n", "        dist.recv(report, src=2)\n"
AHEAD = "        if k + 1 < CHUNKS:\n"
LEAVES = AHEAD + "            dist.send(torch.full((1,), k + 1.0), dst=1)\n"
PASSES_ON = AHEAD + "            dist.recv(chunk, src=0)\n            dist.send(chunk, dst=2)\n"
RETURNS = "        dist.send(result, dst=0)\n"
REPORT_LAST = (TAKES_REPORT + TAKES_RESULT, TAKES_RESULT + TAKES_REPORT)
RESULT_FIRST = (
    f"{AHEAD}            dist.recv(chunk, src=0)\n{RETURNS}{AHEAD}            dist.send(chunk, dst=2)\n"
)
LOOP = ROW[ROW.index("    start, unfinished") : ROW.index("    rest_s = ")]
BLOCKING = """\
    start = time.monotonic()
    for k in range(CHUNKS + 2):
        if k < CHUNKS:
            time.sleep(0.020)  # stage 0
        if k >= 2:
            dist.recv(done, src=2)
            print("chunk", int(done), "is done")
        if k < CHUNKS:
            dist.send(torch.full((1,), float(k)), dst=1)
"""
BLOCKING_AT_TWO = BLOCKING.replace("CHUNKS + 2", "CHUNKS + 1").replace(">= 2", ">= 1")
FOUR = """\
    start, unfinished = time.monotonic(), []
    for k in range(CHUNKS + 3):
        if k < CHUNKS:
            time.sleep(0.020)  # stage 0
        if k >= 3:
            coming, done = unfinished.pop(0)
            coming.wait()
            print("chunk", int(done), "is done")
        if k < CHUNKS:
            done = torch.zeros(1)
            unfinished.append((dist.irecv(done, src=2), done))
            dist.send(torch.full((1,), float(k)), dst=1)
"""
POSTED, TAKEN = "unfinished.append((dist.irecv(done, src=2), done))", "            coming.wait()\n"


@pytest.mark.parametrize(
    ("exercise", "source", "hint"),
    [
        ("12.3", changed(REPORT, REPORT_LAST, (PASSES_ON + RETURNS, RESULT_FIRST)), ""),
        ("12.3", changed(REPORT, REPORT_LAST), "three lists"),
        (
            "12.3",
            changed(REPORT, (TAKES_REPORT, ""), ("        dist.send(chunk + 200, dst=0)\n", "")),
            "report 200",
        ),
        (
            "12.3",
            changed(
                REPORT,
                (LEAVES + TAKES_REPORT + TAKES_RESULT, TAKES_REPORT + TAKES_RESULT + LEAVES),
                (PASSES_ON + RETURNS, RETURNS + PASSES_ON),
            ),
            "nothing overlaps any more",
        ),
        ("12.4", changed(ROW, (LOOP, BLOCKING)), ""),
        ("12.4", changed(ROW, (LOOP, BLOCKING_AT_TWO)), "two chunks are unfinished"),
        ("12.4", changed(ROW, (LOOP, FOUR)), "more than 3 are unfinished"),
        ("12.4", changed(ROW, ("CHUNKS + 3", "CHUNKS + 1"), ("== 3", "== 1")), "the sum of the three stages"),
        ("12.4", changed(ROW, ("CHUNKS + 3", "CHUNKS + 2"), ("== 3", "== 2")), "two chunks are unfinished"),
        ("12.4", changed(ROW, ("CHUNKS + 3", "2 * CHUNKS"), ("== 3", "== 8")), "more than 3 are unfinished"),
        (
            "12.4",
            changed(
                ROW,
                (POSTED, "unfinished.append((None, done))"),
                (TAKEN, "            dist.recv(done, src=2)\n"),
            ),
            "send",
        ),
    ],
)
def test_program_and_its_hint(tmp_path, exercise, source, hint):
    verdict = verdict_of(exercise, source, tmp_path, ranks=3)
    assert hint in verdict.hint
    assert verdict.right == (not hint)
