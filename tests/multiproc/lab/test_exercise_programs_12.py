"""The program of lesson 12: each usual mistake gets its hint, and another right way none."""

from __future__ import annotations

import pytest
from solved import changed, right_program, verdict_of

REPORT = right_program("12.3")
TAKES_RESULT, TAKES_REPORT = "        dist.recv(result, src=1)\n", "        dist.recv(report, src=2)\n"
AHEAD = "        if k + 1 < CHUNKS:\n"
LEAVES = AHEAD + "            dist.send(torch.full((1,), k + 1.0), dst=1)\n"
PASSES_ON = AHEAD + "            dist.recv(chunk, src=0)\n            dist.send(chunk, dst=2)\n"
RETURNS = "        dist.send(result, dst=0)\n"
REPORT_LAST = (TAKES_REPORT + TAKES_RESULT, TAKES_RESULT + TAKES_REPORT)
RESULT_FIRST = (
    f"{AHEAD}            dist.recv(chunk, src=0)\n{RETURNS}{AHEAD}            dist.send(chunk, dst=2)\n"
)


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (changed(REPORT, REPORT_LAST, (PASSES_ON + RETURNS, RESULT_FIRST)), ""),
        (changed(REPORT, REPORT_LAST), "three lists"),
        (
            changed(REPORT, (TAKES_REPORT, ""), ("        dist.send(chunk + 200, dst=0)\n", "")),
            "report 200",
        ),
        (
            changed(
                REPORT,
                (LEAVES + TAKES_REPORT + TAKES_RESULT, TAKES_REPORT + TAKES_RESULT + LEAVES),
                (PASSES_ON + RETURNS, RETURNS + PASSES_ON),
            ),
            "nothing overlaps any more",
        ),
    ],
)
def test_program_and_its_hint(tmp_path, source, hint):
    verdict = verdict_of("12.3", source, tmp_path, ranks=3)
    assert hint in verdict.hint
    assert verdict.right == (not hint)
