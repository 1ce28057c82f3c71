"""A lesson's program over two hosts where no host can be made: what is refused, and what was recorded."""

from __future__ import annotations

import ast

import nbformat
import pytest
from checkout import ROOT

from ppwork.errors import PlanError, UnavailableError
from ppwork.faults.hosts import CABLE
from ppwork.lab import two_hosts
from ppwork.lab.two_hosts import PULLED, RECORDED, on_two_hosts, recorded


@pytest.fixture
def no_root(monkeypatch, tmp_path):
    monkeypatch.setattr(two_hosts, "why_no_hosts", lambda **_: "only root may")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_cable.py").write_text("")


def calls_of_the_lesson():
    """What the page gives to ``on_two_hosts``: the program, and the options by name."""
    (path,) = (ROOT / "notebooks").glob("13-*.ipynb")
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code" and "on_two_hosts(" in cell.source:
            for node in ast.walk(ast.parse(cell.source)):
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("on_two_hosts"):
                    options = {
                        word.arg: word.value.value
                        for word in node.keywords
                        if isinstance(word.value, ast.Constant)
                    }
                    yield node.args[0].value, options


def test_a_reader_who_is_not_root_sees_what_was_recorded_of_every_run_that_needs_two_hosts():
    shown = [
        recorded(
            program, options.get("interface", CABLE), options.get("cable", ""), options.get("ahead_s", 0)
        )
        for program, options in calls_of_the_lesson()
        if options.keys() & {"interface", "cable", "ahead_s"}
    ]
    assert len(shown) == 5
    for run in shown:
        assert run.where == RECORDED
        assert repr(run).startswith("(recorded on two hosts in miniature; here only root may make them)\n")
        assert "--node-rank=1" in run.commands[1]
        assert run.printed(0)


def test_what_was_recorded_is_found_without_root(no_root):
    run = on_two_hosts("my_cable.py", cable=PULLED, at="chunk 3")
    assert run.printed(1).splitlines()[-1] == "rank 1, in recv, after 4 s: timed out"


def test_what_was_not_recorded_is_refused_with_the_reason(no_root):
    with pytest.raises(UnavailableError, match="only root may") as raised:
        on_two_hosts("my_cable.py", interface="ib0")
    assert "my_cable.py, ib0" in str(raised.value)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"cable": "bitten", "at": "chunk 3"}, "cable='bitten'"),
        ({"cable": PULLED}, "at=''"),
        ({"at": "chunk 3"}, "cable=''"),
    ],
)
def test_a_cable_that_there_is_not_is_refused_before_anything_starts(no_root, options, said):
    with pytest.raises(PlanError, match=said):
        on_two_hosts("my_cable.py", **options)


def test_a_program_that_is_not_there_is_refused(no_root):
    with pytest.raises(PlanError, match="There is no file my_nothing"):
        on_two_hosts("my_nothing.py")


def test_the_ranks_of_each_host_and_the_store_are_read_from_the_commands():
    run = recorded("my_cable.py", CABLE, PULLED, 0)
    assert run.ranks == {"hosta": [0], "hostb": [1]}
    assert (run.store, run.interface) == ("10.77.77.1:29400", CABLE)
