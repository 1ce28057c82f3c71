"""``ppwork trace`` of a folder that has calls: table and finding on the screen, files beside the calls."""

from __future__ import annotations

import sys

import pytest
from made_calls import MadeCalls

from ppwork.__main__ import main
from ppwork.cli.main import BAD_INPUT
from ppwork.errors import RunFailed
from ppwork.launcher.script import ScriptRun


def test_a_folder_of_calls_is_shown_and_gets_its_files(tmp_path, monkeypatch, capsys):
    made = MadeCalls(tmp_path / "calls", 2)
    made.recv(1, 0, 0, 31)
    made.send(0, 1, 30, 31)
    for rank in range(2):
        made.left(rank, 40)
    monkeypatch.setattr(sys, "argv", ["ppwork", "trace", str(tmp_path / "calls")])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    shown = capsys.readouterr().out
    assert "Rank 1 waited 30 ms in recv (prog.py:1), until rank 0 called send (prog.py:1)." in shown
    assert {path.name for path in (tmp_path / "calls").glob("calls[.-][pt]*")} == {
        "calls.png",
        "calls.txt",
        "calls-trace.json",
    }


def test_a_program_that_fails_before_its_first_call_is_a_failure_and_no_bad_input(
    tmp_path, monkeypatch, capsys
):
    failed = RunFailed("Rank 0 raised ValueError.", where={"rank": 0})
    run = ScriptRun(tmp_path, 1, failed, nproc=2)
    monkeypatch.setattr("ppwork.cli.trace.launch_script", lambda *_, **__: run)
    monkeypatch.setattr(sys, "argv", ["ppwork", "trace", "prog.py"])
    assert main() == 1
    assert "Rank 0 raised ValueError." in capsys.readouterr().err


def test_a_folder_without_calls_is_bad_input(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["ppwork", "trace", str(tmp_path)])
    assert main() == BAD_INPUT
    assert "no call of torch.distributed" in capsys.readouterr().err


def test_the_files_of_a_folder_of_calls_go_where_they_were_wanted(tmp_path, monkeypatch, capsys):
    """The folder may be somebody else's."""
    made = MadeCalls(tmp_path / "calls", 2)
    made.send(0, 1, 30, 31)
    before = {*(tmp_path / "calls").iterdir()}
    out = tmp_path / "x"
    monkeypatch.setattr(sys, "argv", ["ppwork", "trace", str(tmp_path / "calls"), "--out", str(out)])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 0
    assert {path.name for path in out.iterdir()} == {"calls.png", "calls.txt", "calls-trace.json"}
    assert {*(tmp_path / "calls").iterdir()} == before


@pytest.mark.parametrize(
    "given", [["--nproc", "3"], ["--limit-s", "9"], ["--limit", "9"], ["--ops"], ["--", "x"]]
)
def test_what_only_a_program_heeds_is_refused_with_a_folder(tmp_path, monkeypatch, capsys, given):
    MadeCalls(tmp_path / "calls", 2).send(0, 1, 30, 31)
    monkeypatch.setattr(sys, "argv", ["ppwork", "trace", str(tmp_path / "calls"), *given])
    assert main() == BAD_INPUT
    assert "is heeded only by a program" in capsys.readouterr().err
