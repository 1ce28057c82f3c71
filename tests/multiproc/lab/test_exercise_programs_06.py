"""The programs of lesson 06 on two queues: each usual mistake gets its hint."""

from __future__ import annotations

import pytest
from solved import changed, right_program, verdict_of

import ppwork as pp

pytestmark = pytest.mark.multiproc

ON_HOST = ("            compute.submit(sent[k - 1].wait)", "            sent[k - 1].wait()")
NOT_LATE = ("        time.sleep(0.5)  # a late receiver\n", "")
NO_FILLED = ("        link.submit(filled[k].wait)\n", "        link.submit(time.sleep, 0)\n")
SLOW_FILL = ("    frame.fill_(number)", "    time.sleep(0.9)\n    frame.fill_(number)")
NO_REUSE = ("            link.submit(taken[k - 1].wait)", "            pass")


@pytest.mark.parametrize(
    ("exercise", "changes", "said"),
    [
        ("06.2", [ON_HOST], "the host waited"),
        ("06.2", [NOT_LATE], "Leave rank 1 late"),
        ("06.2", [NO_FILLED, SLOW_FILL], "left before it was filled"),
        ("06.3", [NO_REUSE], "Link has to wait, too"),
    ],
    ids=["on the host", "not late", "first wait taken out", "no reuse"],
)
def test_usual_mistake_gets_its_hint(exercise, changes, said, tmp_path):
    assert said in verdict_of(exercise, changed(right_program(exercise), *changes), tmp_path).hint


def test_wait_for_an_event_of_the_same_round_never_ends(tmp_path):
    text = changed(
        right_program("06.2"),
        ("        if k > 0:\n            compute.submit(sent[k - 1].wait)\n", ""),
        (
            "        compute.submit(fill,",
            "        compute.submit(sent[k].wait)\n        compute.submit(fill,",
        ),
    )
    path = tmp_path / "answer.py"
    path.write_text(text)
    run = pp.launch_script(path, nproc=2, out=tmp_path / "run", check=False, limit_s=8)
    verdict = pp.check("06.2", run)
    assert "It did not end" in verdict.hint, verdict
