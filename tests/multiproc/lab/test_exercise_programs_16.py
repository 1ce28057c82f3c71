"""The programs of lesson 16 for another torch: mended they pass, and each usual mistake gets its hint."""

from __future__ import annotations

import pytest
from solved import changed, right_program, verdict_of

WARNS = 'import warnings\nwarnings.simplefilter("default")\n'
"""An old name warns, as the lesson says, and is right: warnings are errors in the ranks of tests."""
BOTH, GRAPH = right_program("16.1"), right_program("16.3")
ASKED = 'getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor'
CALL = "reduce_scatter(half, mine)"
BY_HAND = "dist.all_reduce(mine)\nhalf = mine[2 * rank : 2 * rank + 2]"
SUM = 'total = funcol.all_reduce(total, "sum", dist.group.WORLD)'


@pytest.mark.parametrize(
    ("exercise", "source", "hint"),
    [
        ("16.1", BOTH, ""),
        ("16.1", changed(BOTH, (ASKED, "dist.reduce_scatter_tensor")), "ask it with `getattr`"),
        ("16.1", changed(BOTH, (CALL, BY_HAND)), "Rank 0 is to call `reduce_scatter_tensor`"),
        ("16.1", changed(BOTH, (CALL, "half = mine[:2]")), "expected 'my half [10.0, 12.0]'"),
        ("16.3", GRAPH, ""),
        ("16.3", changed(GRAPH, (SUM, "dist.all_reduce(total, async_op=True).wait()")), "has a handle"),
        ("16.3", changed(GRAPH, (SUM, SUM.removeprefix("total = "))), "collective leaves its input"),
    ],
)  # fmt: skip
def test_program_and_its_hint(tmp_path, exercise, source, hint):
    verdict = verdict_of(exercise, WARNS + source, tmp_path, limit_s=120)
    assert hint in verdict.hint
    assert verdict.right == (not hint)
