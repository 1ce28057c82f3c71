"""The program of lesson 15 that tests a sentence: each usual mistake gets its hint.

A program of the catalogue that was made a whole file runs as well, and needs nothing of ours.
"""

from __future__ import annotations

import pytest
from solved import changed, right_program, verdict_of

import ppwork as pp

TAGS = right_program("15.3")
FIRST, OTHER = "dist.recv(first, src=0, tag=tags[1])", "dist.recv(other, src=0, tag=tags[0])"
IN_ORDER = (FIRST, "dist.recv(first, src=0, tag=tags[0])"), (OTHER, "dist.recv(other, src=0, tag=tags[1])")
EQUAL = ("torch.tensor([number])", "torch.ones(1)")
JUDGED = 'return "holds" if got == 1 else "does not hold here"'


@pytest.mark.parametrize(
    ("source", "hint"),
    [
        (changed(TAGS, *IN_ORDER, EQUAL, (JUDGED, 'return "holds"')), "no run can refute the sentence"),
        (changed(TAGS, EQUAL), "give the two messages different numbers"),
        (changed(TAGS, (JUDGED, 'return "holds"')), "The verdict is 'holds' twice"),
        (changed(TAGS, ("got == 1", "got == 2")), "the message sent first came first: it holds"),
        (changed(TAGS, ('"one tag": (1, 1), ', "")), "expected a line 'one tag"),
        (changed(TAGS, ("(1, 2)}", "(1, 1)}")), "then two tags"),
    ],
)
def test_program_and_its_hint(tmp_path, source, hint):
    verdict = verdict_of("15.3", source, tmp_path)
    assert hint in verdict.hint
    assert not verdict.right


def test_a_program_of_the_catalogue_runs_as_a_file_of_its_own(tmp_path):
    edited = pp.claims.edit("D45")
    assert edited.cell.startswith("%%ranks 4 --file my_d45.py --may-fail\n")
    (tmp_path / edited.file).write_text(edited.text)
    run = pp.launch_script(tmp_path / edited.file, nproc=edited.ranks, out=tmp_path / "run")
    assert "place" in run.printed(3)
