"""The house stands as it is drawn: few places to look at first, arrows down only, a library that stays small.

Import-linter has the floors (``pyproject.toml``); what it does not count is counted here.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import grimp
import pytest
from checkout import ROOT

PACKAGE = ROOT / "ppwork"
LIBRARY_FILES, LIBRARY_LINES = 30, 6500
"""``PPControlPlane`` may need so many, rooms' openings (``__init__``) beside it.

To raise either, write the reason here. From 27 files and 4,400 lines: NCCL (what blocks its host is refused
at start-up, its errors are told apart, the way out is bounded, the backend is chosen here for launcher and
``join`` alike, a message has its slot before its commitment point, the leader says where a chunk begins, the
device's clock is set again in mid-run); what gave wrong data or no name in a prototype is found where it
happens (lent buffers, tensors without memory, a block left early, a result that was never sent); errors spell
out what would command a terminal, and a plan refuses what only its ranks would have refused. To 5,400 lines:
a pipeline on some ranks of a job, beside others and beside the job's own groups, sessions one after another
that leave no group, thread or descriptor, a mesh that is there already (``seat``, ``groups``), and the answer
of an own loop in one call (``chunks``, ``reply``). To 5,600: a message is posted by the thread that has it,
and what a lane still has to do is told apart from that (``Sending``, ``_hand_on``, ``WatchedQueue``); and
metadata that cannot travel is named with its place (``wire``). To 5,650: the plane tells what looks at it
when it is called and what it gives back, so that a loop of one's own is recorded and compared (``Watch``). To
29 files and 5,900 lines: a rank of any torchrun dies with it, which ``process`` does for ours (torchrun was
killed, and its ranks ran on). To 6,100: ranks on several hosts sign what they tell of themselves in a store
that strangers reach, with a secret that is not in it (``groups``); wrong data that went out as good (a loop
without an answer or with two, which at depth 2 took another chunk's ids; a buffer filled anew in a late
chunk), and errors that named the chunk of a lane in place of the one in hand, or of a raw exception no rank.
To 6,150: mistakes of a loop that were an `AttributeError` or a `KeyError`, left with code 0, or had sent an
acknowledgement before they were found, are refused by name. To 6,166: a block that was left early, and a
buffer that was written to while lent, name the line that did it, and a time beyond any run's is refused. To
6,176: a store whose folder is gone is named, where torch tries for five minutes with Python's lock held. To
6,286: tensors of up to 256 KB share a transfer (``lay_out``), a lent tensor is looked at once, by means that
are cheap after a pause (``lent``), entries that follow each other at once are one write (``Recorder``), a
lane lets the thread run that it has woken (``give_way``), and one that is late refuses no chunk. To 30 files
and 6,348: an exception that nobody caught ends a rank before gloo aborts it (``way_out``), and a rank that
waits alone for a new group has a bound. To 6,389: results that drift apart have a sample of their bytes in
every chunk (`sample_of`), and an error may be of several ranks (`between`). To 6,404: a field that is refused
names its option, which may have another name (``option_of``). To 6,408: an end that comes too early says
"""
TOP_PACKAGES, TOP_FILES = 13, 8
"""The eighth file is ``ranks``, the one place from which a prototype imports."""


@pytest.fixture(scope="module")
def graph():
    """Who imports whom, imports for types and in functions counted."""
    return grimp.build_graph("ppwork", exclude_type_checking_imports=False, cache_dir=None)


def file_of(module: str) -> Path:
    path = ROOT / module.replace(".", "/")
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


def lines_of(module: str) -> int:
    return len(file_of(module).read_text().splitlines())


def library_of(graph) -> set[str]:
    needed = graph.find_upstream_modules("ppwork.runtime", as_package=True)
    own = {"ppwork.runtime", *graph.find_descendants("ppwork.runtime")}
    return {module for module in needed | own if file_of(module).name != "__init__.py"}


def test_top_level_is_few_enough_to_be_read_at_a_glance():
    packages = [path for path in PACKAGE.iterdir() if (path / "__init__.py").exists()]
    files = list(PACKAGE.glob("*.py"))
    assert len(packages) <= TOP_PACKAGES, sorted(path.name for path in packages)
    assert len(files) <= TOP_FILES, sorted(path.name for path in files)


def test_library_that_a_prototype_takes_away_stays_small(graph):
    modules = library_of(graph)
    lines = sum(map(lines_of, modules))
    assert len(modules) <= LIBRARY_FILES, sorted(modules)
    assert lines <= LIBRARY_LINES, lines
    # The count is of the right thing: it reaches the wire and the recorder, and no room above.
    assert {"ppwork.runtime.groups", "ppwork.protocol.wire", "ppwork.records.spans"} <= modules
    rooms = {module.split(".")[1] for module in modules}
    assert rooms <= {"protocol", "runtime", "records", "errors", "process", "version"}


def test_no_two_files_import_each_other_by_any_way(graph):
    circles = [
        (importer, imported)
        for importer in sorted(graph.modules)
        for imported in sorted(graph.find_modules_directly_imported_by(importer))
        if graph.chain_exists(importer=imported, imported=importer)
    ]
    assert not circles


def test_our_own_modules_are_imported_plainly():
    """An import for types only would hide an arrow from whoever reads the contract."""
    hidden = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
                hidden += [
                    f"{path.relative_to(ROOT)}: {ast.unparse(statement)}"
                    for statement in node.body
                    if isinstance(statement, ast.Import | ast.ImportFrom)
                    and "ppwork" in ast.unparse(statement).split()[1].split(".")
                ]
    assert [line for line in hidden if not line.startswith("ppwork/__init__.py")] == []


def test_every_room_says_what_it_is_for_and_what_it_may_import():
    for path in PACKAGE.glob("*/__init__.py"):
        opening = importlib.import_module(f"ppwork.{path.parent.name}").__doc__ or ""
        assert "May import" in opening, path.parent.name


def test_architecture_names_every_room():
    page = (ROOT / "docs" / "architecture.md").read_text()
    for path in PACKAGE.glob("*/__init__.py"):
        assert f"`{path.parent.name}`" in page, path.parent.name
