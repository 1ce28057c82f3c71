"""A cell's file is written anew by the next cell, and nothing else is overwritten."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from ppwork.errors import PlanError
from ppwork.lab import magic


@pytest.fixture
def launched(tmp_path, monkeypatch):
    """Programs as they would have run, in place of ranks."""
    texts: list[str] = []
    monkeypatch.chdir(tmp_path)

    def launch(file, **_):
        texts.append(file.read_text())
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
