"""What the command line writes is what it was given: a log's line may look like markup."""

from __future__ import annotations

import msgspec
import pytest
from rich.console import Console

from ppwork.cli.output import write_json, write_text
from ppwork.pictures.tables import Table


def test_a_text_is_written_as_it_is(capsys):
    text = f"rank[bold]0[/bold] at :x: {'long ' * 60}end"
    write_text(text)
    assert capsys.readouterr().out == f"{text}\n"


def test_json_is_all_that_is_written(capsys):
    write_json({"rank": 0, "where": [1, 2]})
    assert msgspec.json.decode(capsys.readouterr().out) == {"rank": 0, "where": [1, 2]}


@pytest.mark.parametrize("width", [20, 60])
def test_no_cell_of_a_table_is_cut_off(width):
    console = Console(width=width)
    with console.capture() as captured:
        console.print(Table(["run", "state"], [["/a/long/path/of/a/run", "going"]]))
    assert "".join(captured.get().split()).replace("going", "") == "runstate/a/long/path/of/a/run"
