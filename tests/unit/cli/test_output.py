"""What the command line writes is what it was given: a log's line may look like markup."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import msgspec
import pytest
from rich.console import Console

from ppwork.cli import main as cli
from ppwork.cli.output import write_json, write_text
from ppwork.cli.runs import list_runs
from ppwork.errors import PPWorkError
from ppwork.launcher.registry import registered
from ppwork.pictures.tables import Table


def test_a_text_is_written_as_it_is(capsys):
    text = f"rank[bold]0[/bold] at :x: {'long ' * 60}end"
    write_text(text)
    assert capsys.readouterr().out == f"{text}\n"


HOSTILE = "ValueError: \x1b]0;owned\x07\x1b[2Jrun OK \u202egnp \x9b1m\rrank 0: fine \udcff"
SPELLED = r"ValueError: \x1b]0;owned\x07\x1b[2Jrun OK \u202egnp \x9b1m\rrank 0: fine \udcff"


def test_what_would_command_the_terminal_is_spelled_out(capsys):
    """Also for who has our error in a plain script, where Python itself prints it."""
    write_text(f"{HOSTILE}\nnext")
    assert capsys.readouterr().out == f"{SPELLED}\nnext\n"
    assert str(PPWorkError(HOSTILE, check_first=HOSTILE)) == f"{SPELLED}\n  check first: {SPELLED}"
    table = Table(["run"], [[HOSTILE], [("\x1b", "red")]], above="[/x]\x1b", below="[/y]\x1b")
    console = Console(width=200)
    with console.capture() as captured:
        console.print(table)
    for text in (captured.get(), str(table)):
        assert "\x1b" not in text
        assert all(part in text for part in (SPELLED, r"[/x]\x1b", r"[/y]\x1b"))


def test_runs_in_folders_with_markup_in_their_names_are_listed_as_they_are(tmp_path, monkeypatch, capsys):
    """Such a name once ended `ps` for all runs, and `stop --all` after the first one."""
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))  # no Slurm, which would be asked for its queue
    with registered(Path("/m[/x]z"), os.getpid()), registered(Path("/a[red]b"), os.getppid()):
        list_runs()
    shown = capsys.readouterr().out
    assert "/m[/x]z" in shown
    assert "/a[red]b" in shown


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EDQUOT, "Disk quota exceeded", "/r/plan.json"), "/r/plan.json: Disk quota exceeded\n"),
        (FileNotFoundError(errno.ENOENT, "No such file or directory"), "No such file or directory\n"),
        (OSError("as a library says it"), "as a library says it\n"),
    ],
)
def test_what_the_system_refuses_in_the_middle_of_a_command_is_no_traceback(monkeypatch, capsys, error, said):
    def refused():
        raise error

    monkeypatch.setattr(cli, "app", refused)
    monkeypatch.setattr(cli.signal, "signal", lambda *_: None)
    assert cli.main() == cli.FAILED
    shown = capsys.readouterr().err
    assert shown.startswith(said)
    assert "check first:" in shown


def test_json_is_all_that_is_written(capsys):
    write_json({"rank": 0, "where": [1, 2]})
    assert msgspec.json.decode(capsys.readouterr().out) == {"rank": 0, "where": [1, 2]}


@pytest.mark.parametrize("width", [20, 60])
def test_no_cell_of_a_table_is_cut_off(width):
    console = Console(width=width)
    with console.capture() as captured:
        console.print(Table(["run", "state"], [["/a/long/path/of/a/run", "going"]]))
    assert "".join(captured.get().split()).replace("going", "") == "runstate/a/long/path/of/a/run"
