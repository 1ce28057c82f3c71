"""What is asked of a program of one's own and cannot be, before anything is started."""

from __future__ import annotations

import errno
import os
import re

import pytest

import ppwork as pp
from ppwork.lab.magic import ranks
from ppwork.lab.progress import RankState, ScriptProgress
from ppwork.launcher.nodes import wire
from ppwork.launcher.script import ScriptRun


def test_a_program_that_is_not_there_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pp.PlanError, match=r"There is no program missing\.py"):
        pp.launch_script("missing.py", nproc=2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("source", "said", "check_first"),
    [
        (b"x = 1\nif x\n    pass\n", r"mine\.py:2 is not Python: expected ':'\.\n    if x\n", "that line"),
        (b"!ls\n", r"mine\.py:1 is not Python", "no `!` and no `%`"),
        (b"x = 1\0\n", r"mine\.py.* is not Python: .*null bytes", "UTF-8"),
        (b"name = 'caf\xe9'\n", r"mine\.py.* is not Python: .*utf-8", "UTF-8"),
        (b"# coding: klingon\n", r"mine\.py.* is not Python: .*klingon", "UTF-8"),
        (b"(" * 300 + b")" * 300, r"mine\.py:1 is not Python: too many nested", "UTF-8|that line"),
    ],
)
def test_what_python_would_not_run_is_refused_before_anything_starts(
    tmp_path, monkeypatch, source, said, check_first
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_bytes(source)
    with pytest.raises(pp.PlanError, match=said) as refused:
        pp.launch_script("mine.py", nproc=2)
    assert re.search(check_first, refused.value.check_first)
    assert not (tmp_path / "runs").exists()


def test_a_folder_and_a_file_that_cannot_be_read_are_no_programs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pp.PlanError, match="is a folder and no program"):
        pp.launch_script(tmp_path, nproc=2)
    (tmp_path / "mine.py").write_text("")
    monkeypatch.setattr("pathlib.Path.read_bytes", refuse)
    with pytest.raises(pp.PlanError, match="cannot be read: Permission denied"):
        pp.launch_script("mine.py", nproc=2)
    assert not (tmp_path / "runs").exists()


def refuse(path):
    raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))


def test_a_cell_that_is_not_python_is_refused_with_its_line(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pp.PlanError, match=r"my_ranks\.py:2 is not Python"):
        ranks("2", "x = 1\n%time x\n")
    assert not (tmp_path / "runs").exists()


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


@pytest.mark.parametrize(
    ("arguments", "use_shared", "words"),
    [
        (("x",) * (wire.ARGUMENTS + 1), True, "4097 arguments of 4097 bytes"),
        (("x", "\u00e9" * (wire.ARGUMENT // 2 + 1)), True, "the longest of 131072"),
        (("\n" * 60_000,) * 5, True, "all of 524288"),
        (("\udcff",), True, "is not UTF-8"),
        ((), False, "use_shared=False is for runs of a plan"),
    ],
)
def test_what_cannot_go_to_other_hosts_is_refused_before_they_are_called(
    tmp_path, monkeypatch, arguments, use_shared, words
):
    """Else it is found by a host whose node is lost by it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    on = pp.Hosts("a", "b", use_shared=use_shared)
    monkeypatch.setattr("ppwork.launcher.script.HostSession", lambda *_: pytest.fail("hosts were called"))
    with pytest.raises(pp.PlanError, match=words):
        pp.launch_script("mine.py", nproc=2, arguments=arguments, on=on)
    assert not (tmp_path / "runs").exists()


def test_a_cell_that_cannot_be_written_is_told(tmp_path):
    with pytest.raises(pp.PlanError, match="could not be written"):
        ranks(f"2 --file {tmp_path}/nowhere/mine.py", "print(1)")


def test_ranks_show_what_they_printed_in_their_order(tmp_path):
    facts = ScriptProgress(tmp_path, 2, limit_s=120.0)
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
