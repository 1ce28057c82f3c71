"""What is asked of a program of one's own and cannot be, before anything is started."""

from __future__ import annotations

import pytest

import ppwork as pp
from ppwork.lab.live import RankState, ScriptProgress
from ppwork.lab.magic import ranks
from ppwork.launcher.script import ScriptRun


def test_a_program_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pp.PlanError, match=r"There is no program missing\.py"):
        pp.launch_script("missing.py", nproc=2)
    assert list(tmp_path.iterdir()) == []


def test_no_ranks_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    with pytest.raises(pp.PlanError, match="on 0 ranks"):
        pp.launch_script("mine.py", nproc=0)
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("line", ["", "three", "2 --limit soon"])
def test_a_line_that_says_no_number_of_ranks_gets_the_usage(tmp_path, monkeypatch, line):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pp.PlanError, match="did not understand") as refused:
        ranks(line, "print(1)")
    assert "%%ranks N" in refused.value.check_first
    assert list(tmp_path.iterdir()) == []


def test_a_cell_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(pp.PlanError, match="could not be written"):
        ranks(f"2 --file {tmp_path}/nowhere/mine.py", "print(1)")


def test_ranks_show_what_they_printed_in_their_order(tmp_path):
    facts = ScriptProgress(tmp_path, 2)
    assert [now.state for now in facts.look()] == ["not started"] * 2
    for rank, text in ((1, "one <b>\n"), (0, "zero\n")):
        folder = tmp_path / "job_x" / "attempt_0" / str(rank)
        folder.mkdir(parents=True)
        (folder / "stdout.log").write_text(text)
        (folder / "stderr.log").write_text("warned\n")
    assert facts.look()[1] == RankState(1, "", "started", "", ("one <b>", "warned"))
    finished = ScriptRun(tmp_path, 0, nproc=2)
    assert repr(finished) == "rank 0: zero\nrank 1: one <b>"
    assert "one &lt;b&gt;" in finished._repr_html_()
