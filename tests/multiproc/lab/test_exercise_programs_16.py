"""The programs of lesson 16 for another torch: each usual mistake gets its hint."""

from __future__ import annotations

import pytest
from solved import changed, right_program, verdict_of

NAMES, GRAPH = right_program("16.1"), right_program("16.3")
LOOP = "for name in (new, old):"
THIRD = (LOOP, f"return getattr(dist, new, getattr(dist, old))\n    {LOOP}")
OR = (LOOP, f"return getattr(dist, new, None) or getattr(dist, old)\n    {LOOP}")
OLD_FIRST = ("(new, old)", "(old, new)")
NO_ERROR = ("    raise AttributeError", "    return str")
SUM = 'total = funcol.all_reduce(total, "sum", dist.group.WORLD)'


@pytest.mark.parametrize(
    ("exercise", "source", "hint"),
    [
        ("16.1", changed(NAMES, THIRD), "third argument"),
        ("16.1", changed(NAMES, OLD_FIRST), "new one first"),
        ("16.1", changed(NAMES, OR), "has to learn both"),
        ("16.1", changed(NAMES, NO_ERROR), "`either` raised nothing"),
        ("16.1", changed(NAMES, ("scatter_sum(part", "(part")), "expected ['today [[1.0, 2.0], 2.0"),
        ("16.3", changed(GRAPH, (SUM, "dist.all_reduce(total, async_op=True).wait()")), "has a handle"),
        ("16.3", changed(GRAPH, (SUM, SUM.removeprefix("total = "))), "collective leaves its input"),
    ],
)  # fmt: skip
def test_program_and_its_hint(tmp_path, exercise, source, hint):
    verdict = verdict_of(exercise, source, tmp_path, limit_s=120)
    assert hint in verdict.hint
    assert not verdict.right
