"""The programs of lesson 09 that stand still: each usual false cure gets its hint."""

from __future__ import annotations

import pytest
from solved import changed, right_program, verdict_of

UNEVEN, PRINTS, CIRCLE = (right_program(f"09.{number}") for number in (1, 2, 3))
AGREED = "rounds = torch.tensor([len(batches)])\ndist.all_reduce(rounds, op=dist.ReduceOp.MAX)\n"
MEAN = "    mean_loss = mean(loss)\n"
HIGHEST, LOWEST = "ReduceOp.MAX", "ReduceOp.MIN"


@pytest.mark.parametrize(
    ("exercise", "source", "hint"),
    [
        ("09.1", changed(UNEVEN, (AGREED, "rounds = torch.tensor([len(batches)])\n")), "has each rank run"),
        ("09.1", changed(UNEVEN, (HIGHEST, LOWEST)), "A batch was left out"),
        ("09.2", changed(PRINTS, (MEAN, f"    if rank == 0:\n    {MEAN}")), "does `mean` call"),
        ("09.2", changed(PRINTS, ("    if rank == 0:\n", "    if True:\n")), "Only rank 0 is to print"),
        ("09.3", changed(CIRCLE, ("    dist.send(mine, dst=2)\n    dist.send(mine, dst=0)\n",
                         "    dist.send(mine, dst=0)\n    dist.send(mine, dst=2)\n")), "Draw an arrow"),
    ],
)  # fmt: skip
def test_program_and_its_hint(tmp_path, exercise, source, hint):
    verdict = verdict_of(exercise, source, tmp_path, ranks=3)
    assert hint in verdict.hint
    assert not verdict.right
