"""A cell's file is written anew by the next cell, and nothing else is overwritten."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from ppwork.errors import PlanError, RunFailed
from ppwork.lab import live, magic
from ppwork.lab.magic import own_programs_first
from ppwork.launcher.nodes.places import places_of
from ppwork.launcher.script import ScriptRun


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Programs as they would have run, in place of ranks."""
    texts: list[str] = []
    monkeypatch.chdir(tmp_path)

    def launch(file, *, picture, **_):
        texts.append(file.read_text() + ("" if picture else "no picture"))
        return SimpleNamespace(failure=None)

    monkeypatch.setattr(magic, "launch_script", launch)
    return texts


@pytest.mark.parametrize("cell", ["print(1)\n", "print(1)", "", "print('\N{DEGREE SIGN}')\n"])
def test_the_next_cell_replaces_the_file_of_the_one_before(launched, tmp_path, cell):
    magic.ranks("2", cell)
    magic.ranks("2", "print(2)\n")
    magic.ranks("2", cell)
    assert launched[0] == launched[2]
    assert launched[0].startswith(cell)
    assert [path.name for path in tmp_path.iterdir()] == ["my_ranks.py"]


def test_a_picture_can_be_left_out(launched):
    magic.ranks("2", "print(1)\n")
    magic.ranks("2 --no-picture", "print(1)\n")
    assert [text.endswith("no picture") for text in launched] == [False, True]


def test_a_cell_can_name_the_hosts_of_its_ranks(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    asked = []
    monkeypatch.setattr(
        magic, "launch_script", lambda _, **more: asked.append(more) or SimpleNamespace(failure=None)
    )
    magic.ranks("3 --on local:2 --ranks 2,1 --rate 5", "print(1)")
    magic.ranks("3", "print(1)")
    assert [more["on"] for more in asked] == [places_of("local:2", "2,1"), None]
    assert asked[0]["arguments"] == ("--rate", "5")
    with pytest.raises(PlanError, match="slurm:2"):
        magic.ranks("3 --on elsewhere", "print(1)")


@pytest.mark.parametrize("line", ["2", "2 --file train.py"])
@pytest.mark.parametrize("whose", ["mine", "changed by hand", "continued by hand"])
def test_a_file_that_no_cell_wrote_is_left_alone(launched, tmp_path, line, whose):
    path = tmp_path / ("train.py" if "train" in line else "my_ranks.py")
    text = "print('mine')\n"
    if whose != "mine":
        magic.ranks(line, "print(1)\n")
        written = launched.pop()
        text = written.replace("1", "7") if whose == "changed by hand" else f"{written}print(8)\n"
    path.write_text(text)
    with pytest.raises(PlanError, match="not overwritten"):
        magic.ranks(line, "print(2)\n")
    assert path.read_text() == text
    assert launched == []


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("2 --check 99.1", "There is no exercise on ranks '99.1'"),
        ("2 --check 04.3", "There is no exercise on ranks '04.3'"),
        ("2 --as my-run", "'my-run' is no name of a variable"),
        ("2 --may-fail --check 01.1", "not allowed with argument"),
        ("2 --limit 0", "'0' is no limit"),
        ("2 --limit=-5", "'-5' is no limit"),
        ("2 --limit nan", "'nan' is no limit"),
        ("2 --title it's", "%%ranks did not understand its line: No closing quotation"),
    ],
)
def test_what_a_line_asks_for_and_cannot_have_is_refused_before_anything_runs(launched, tmp_path, line, said):
    with pytest.raises(PlanError, match=said):
        magic.ranks(line, "print(1)\n")
    assert launched == []
    assert list(tmp_path.iterdir()) == []


def test_a_failed_cell_ends_with_its_diagnosis_without_folders(tmp_path):
    failure = RunFailed("Rank 1 left.\n  log: /x/runs/1\n  folder: /x", check_first="the branch of rank 1")
    run = ScriptRun(tmp_path, 1, failure, nproc=2)
    assert magic.ending(run) == "exit code 1\nRank 1 left.\n  check first: the branch of rank 1"


@pytest.mark.parametrize(("option", "told"), [("", True), ("--no-diagnosis", False)])
def test_a_failed_cell_can_leave_its_diagnosis_to_the_picture(tmp_path, monkeypatch, capsys, option, told):
    run = ScriptRun(tmp_path, 1, RunFailed("Rank 1 left.", check_first="its branch"), nproc=2)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(magic, "launch_script", lambda *_, **__: run)
    monkeypatch.setattr(magic, "_show", lambda _: None)
    magic.ranks(f"2 --may-fail {option}", "print(1)\n")
    assert ("check first: its branch" in capsys.readouterr().out) == told


@pytest.mark.parametrize(("option", "drawn"), [("", True), ("--no-picture", False), ("--no-record", False)])
def test_a_cell_can_leave_the_picture_of_its_calls_out(tmp_path, monkeypatch, option, drawn):
    shown = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(live, "launch_program", lambda *_, **__: ScriptRun(tmp_path, 0, None, nproc=2))
    monkeypatch.setattr(live, "program", lambda _: SimpleNamespace(_repr_html_=lambda: "<img>"))
    monkeypatch.setattr(magic, "_show", shown.append)
    magic.ranks(f"2 {option}", "print(1)\n")
    assert [run._repr_html_().endswith("<img>") for run in shown] == [drawn]


def test_torchrun_of_a_cell_is_that_of_this_python(monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin")
    own_programs_first()
    own_programs_first()
    assert os.environ["PATH"].split(os.pathsep) == [str(Path(sys.executable).parent), "/usr/bin"]
