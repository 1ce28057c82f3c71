"""The face of the pictures: every name is what it is called, and nothing heavy comes with it."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

import ppwork as pp


def test_every_name_is_called_so_where_it_is_made_and_nothing_stands_beside():
    """A module of a picture's name would take its place when it is imported."""
    public = [
        name
        for name, value in vars(pp.pictures).items()
        if name[0] != "_"
        and not (isinstance(value, ModuleType) and value.__name__ == f"ppwork.pictures.{name}")
    ]
    assert sorted(public) == pp.pictures.__all__
    for name in pp.pictures.__all__:
        assert getattr(pp.pictures, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'pie'"):
        _ = pp.pictures.pie


@pytest.mark.processes
def test_a_table_and_a_finding_need_no_matplotlib():
    code = (
        "import sys, ppwork as pp; picture = pp.pictures.topology(pp.Plan());"
        "print(picture.finding, picture.table);"
        "print([name for name in ('torch', 'matplotlib', 'rich') if name in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert answer.stdout.splitlines()[-1] == "[]"
