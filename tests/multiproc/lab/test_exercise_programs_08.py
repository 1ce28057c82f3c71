"""The programs of lesson 08: a clock of a rank's own work, and ranks that leave with their launcher."""

from __future__ import annotations

import pytest
from solved import changed, right_program, verdict_of

STALL, LIFELINE = right_program("08.1"), right_program("08.4")
RECV, BEGIN = "        dist.recv(tensor, src=0)\n", "        began = time.monotonic()\n"
AGE = "age = time.monotonic() - since if since else 0.0\n"


@pytest.mark.parametrize(
    ("exercise", "ranks", "source", "hint"),
    [
        ("08.1", 2, changed(STALL, (RECV + BEGIN, BEGIN + RECV)), "waiting for rank 0"),
        ("08.1", 2, changed(STALL, (AGE, "age = 0.0\n")), "nobody was warned"),
        ("08.4", 1, changed(LIFELINE, ("    os._exit(1)\n", "    pass\n")), "ends the process"),
    ],
)  # fmt: skip
def test_program_and_its_hint(tmp_path, exercise, ranks, source, hint):
    verdict = verdict_of(exercise, source, tmp_path, ranks=ranks, limit_s=60)
    assert hint in verdict.hint
    assert not verdict.right
