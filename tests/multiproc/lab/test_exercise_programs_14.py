"""The programs of the capstone: each usual mistake gets its hint."""

from __future__ import annotations

import pytest
from solved import changed, right_program, verdict_of

STREAM, LAYER = right_program("14.1"), right_program("14.2")
REST = "    for each in unfinished:\n        emit(*each)\n"
TWO = "if len(unfinished) == 2:"
SUM = "dist.all_reduce(total)\n"
HALF = " + my_bias"
ADDED = "total = total + x + down_bias"
AFTER = (ADDED, "total = total + x + up_bias + down_bias")


@pytest.mark.parametrize(
    ("exercise", "source", "hint"),
    [
        ("14.1", changed(STREAM, (REST, "")), "emitted 3 of 4 chunks"),
        ("14.1", changed(STREAM, (TWO, "if unfinished:")), "Only one chunk at a time"),
        ("14.2", changed(LAYER, (HALF, ""), AFTER), "`up_bias` went in after the second layer"),
        ("14.2", changed(LAYER, (HALF, "")), "`up_bias` is missing"),
        ("14.2", changed(LAYER, (HALF, " + up_bias[:2]")), "Both ranks added the first half"),
        (
            "14.2",
            changed(LAYER, (f"{SUM}{ADDED}", f"total = total + down_bias\n{SUM}total = total + x")),
            "is `down_bias`, once",
        ),
        ("14.2", changed(LAYER, (f"{SUM}{ADDED}", f"{ADDED}\n{SUM}")), "frame and `down_bias`, once"),
        (
            "14.2",
            changed(LAYER, (f"{SUM}{ADDED}", f"total = total + x\n{SUM}total = total + down_bias")),
            "is the frame, once",
        ),
        ("14.2", changed(LAYER, (SUM, "")), "made no all_reduce"),
        (
            "14.2",
            changed(LAYER, (ADDED, "total = total / 2 + x + down_bias")),
            "Which bias belongs to the hidden units",
        ),
    ],
)
def test_program_and_its_hint(tmp_path, exercise, source, hint):
    verdict = verdict_of(exercise, source, tmp_path)
    assert hint in verdict.hint
    assert not verdict.right
