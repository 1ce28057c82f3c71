"""Exercises on ranks of the lesson on streams, on real ranks: as the lesson has them, right, and mistaken."""

from __future__ import annotations

import nbformat
import pytest
from checkout import ROOT
from solved import verdict_of

import ppwork as pp

pytestmark = pytest.mark.multiproc

LESSON = "06-which-stream-waits-for-which.ipynb"


def program(exercise, *, solved=False):
    """Return the program of an exercise, as the lesson or the solution has it."""
    path = ROOT / "notebooks" / ("solutions" if solved else "") / LESSON
    sources = [cell.source for cell in nbformat.read(path, as_version=4).cells]
    (source,) = [text for text in sources if text.startswith("%%ranks") and f"--check {exercise}" in text]
    return source.partition("\n")[2]


def changed(exercise, *changes, solved=False):
    text = program(exercise, solved=solved)
    for old, new in changes:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    return text


@pytest.mark.parametrize("exercise", ["06.2", "06.3"])
def test_solution_is_right(exercise, tmp_path):
    assert verdict_of(exercise, program(exercise, solved=True), tmp_path).right


ON_HOST = ("            compute.submit(sent[k - 1].wait)", "            sent[k - 1].wait()")
NOT_LATE = ("        time.sleep(0.5)  # a late receiver\n", "")
NO_FILLED = ("        link.submit(filled[k].wait)\n", "        link.submit(time.sleep, 0)\n")
SLOW_FILL = ("    frame.fill_(number)", "    time.sleep(0.9)\n    frame.fill_(number)")
NO_REUSE = ("            link.submit(taken[k - 1].wait)", "            pass")


@pytest.mark.parametrize(
    ("exercise", "solved", "changes", "said"),
    [
        ("06.2", False, [], "compute had filled the buffer again"),
        ("06.2", True, [ON_HOST], "the host waited"),
        ("06.2", True, [NOT_LATE], "Leave rank 1 late"),
        ("06.2", True, [NO_FILLED, SLOW_FILL], "left before it was filled"),
        ("06.3", False, [], "before anything had come"),
        ("06.3", True, [NO_REUSE], "Link has to wait, too"),
    ],
    ids=["refill", "on the host", "not late", "first wait taken out", "take", "no reuse"],
)
def test_usual_mistake_gets_its_hint(exercise, solved, changes, said, tmp_path):
    assert said in verdict_of(exercise, changed(exercise, *changes, solved=solved), tmp_path).hint


def test_wait_for_an_event_of_the_same_round_never_ends(tmp_path):
    text = changed(
        "06.2", ("        if k > 0:\n            compute.submit(sent[k - 1].wait)\n", ""), solved=True
    )
    text = text.replace(
        "        compute.submit(fill,", "        compute.submit(sent[k].wait)\n        compute.submit(fill,"
    )
    path = tmp_path / "answer.py"
    path.write_text(text)
    run = pp.launch_script(path, nproc=2, out=tmp_path / "run", check=False, limit_s=8)
    verdict = pp.check("06.2", run)
    assert "It did not end" in verdict.hint, verdict
