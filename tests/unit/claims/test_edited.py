"""A claim's program as a whole file: it lacks nothing, and what cannot be one is refused."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import IPython
import pytest

import ppwork as pp
from ppwork.claims.catalogue import CLAIMS
from ppwork.errors import PlanError


@pytest.mark.processes
def test_no_whole_file_lacks_a_name(tmp_path):
    """A file that needed something of the catalogue's would be refused by name here."""
    refused = 0
    for claim in CLAIMS.values():
        for name in claim.programs:
            try:
                edited = pp.claims.edit(claim.id, name)
            except PlanError:
                refused += 1
                continue
            assert "ppwork" not in edited.text
            (tmp_path / f"{claim.id}_{name.replace(' ', '_')}.py").write_text(edited.text)
    written = len(list(tmp_path.iterdir()))
    assert written > refused
    rules = ["--isolated", "--select", "F821,F811,F823,E9", "--no-cache"]
    looked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", *rules, tmp_path], check=False, capture_output=True, text=True
    )
    assert looked.returncode == 0, looked.stdout


def test_in_a_notebook_it_stands_in_a_new_cell(monkeypatch):
    cells = []
    shell = SimpleNamespace(set_next_input=cells.append)
    monkeypatch.setattr(IPython, "get_ipython", lambda: shell)
    edited = pp.claims.edit("C01", "late sender")
    assert cells == [edited.cell] == [repr(edited)]
    assert "def late_sender" in edited.text
    assert "def late_receiver" not in edited.text
    assert "&lt;&lt;" not in edited._repr_html_()


def test_the_environment_of_a_program_is_set_before_torch_reads_it():
    text = pp.claims.edit("C11", "mended").text
    assert text.index("TORCH_DISTRIBUTED_DEBUG") < text.index("import torch\n")
    assert text.index("set_debug_level_from_env()") < text.index("init_process_group(")


@pytest.mark.parametrize(
    ("program", "said"),
    [("broken", "has no program 'broken'"), ("constants", "cannot be run by itself")],
)
def test_what_is_no_whole_file_is_refused_with_what_shows_it(program, said):
    with pytest.raises(PlanError, match=said) as caught:
        pp.claims.edit("D49", program)
    assert caught.value.check_first in (
        "one of constants",
        "pp.claims.open_up(pp.claims.run('D49')), which shows it",
    )
