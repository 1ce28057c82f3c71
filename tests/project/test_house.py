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
LIBRARY_FILES, LIBRARY_LINES = 32, 7050
"""What ``PPControlPlane`` may need, rooms' openings (``__init__``) beside it: a prototype takes it away, and
its authors read it. There is room for some lines; a commit that raises the limit says why. The last:
``runtime.device``, because a GPU that is not there, or variables that come too late, were told by nobody, the
time of the device in a loop of one's own, in place of its launches, and whether a rank that did not join
lives, so that `join` does not wait for one that has ended, ``plane.tp``, which a loop has as a stage,
at which line of a loop a peer was lost, a mesh of GPUs beside links on the CPU, and what to give in place of
metadata that cannot travel."""
RANK_FILES, RANK_LINES = 70, 14630
"""What ``ppwork.ranks`` may need, which a prototype imports: every rank loads it when it starts. The last
lines are all of what strangers missed: a cut for which a loop does not ask, ``compare``, results that differ
fail a run, an ``encode`` without a ``return`` is refused, a refused start leaves its reason, torchrun's
closing report repeats the cause, one mesh rank alone wrote into what all had received, a stage asks for
``compare``, too, metadata that mesh ranks give differently are told, which side made a
collective more, ``runtime.device``, which call of an earlier line a rank may have left out, a loop that
releases no result, the end of a rank that stands stopped, a ``decode`` without a ``return``,
``ppwork verify``, an option that looks misspelt is told before the first chunk, of a stuck rank
the stacks of its own threads alone are shown, of results that differ the tensor is named, a loop's console
has the command that verifies it, and how a rank shows its errors has a file of its own."""
RANK_ROOMS = {"protocol", "runtime", "records", "worker", "timeline"}
"""``timeline`` is there for the summary that rank 0 writes; what starts ranks, draws or teaches is not."""
GROUND = {"errors", "process", "version", "plan", "stage", "ranks"}
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
    own = {"ppwork.runtime", *graph.find_descendants("ppwork.runtime")}
    return files(graph.find_upstream_modules("ppwork.runtime", as_package=True) | own)


def rank_of(graph) -> set[str]:
    return files(graph.find_upstream_modules("ppwork.ranks") | {"ppwork.ranks"})


def files(modules: set[str]) -> set[str]:
    return {module for module in modules if file_of(module).name != "__init__.py"}


def rooms_of(modules: set[str]) -> set[str]:
    return {module.split(".")[1] for module in modules}


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
    assert rooms_of(modules) <= {"protocol", "runtime", "records", "errors", "process", "version"}


def test_rank_of_a_prototype_loads_nothing_that_starts_ranks_draws_or_teaches(graph):
    modules = rank_of(graph)
    assert rooms_of(modules) <= RANK_ROOMS | GROUND, sorted(modules)
    lines = sum(map(lines_of, modules))
    assert len(modules) <= RANK_FILES, sorted(modules)
    assert lines <= RANK_LINES, lines
    assert {"ppwork.worker.user_job", "ppwork.worker.loops", "ppwork.records.folder"} <= modules
    assert library_of(graph) <= modules


def test_architecture_says_how_large_they_may_be():
    page = " ".join((ROOT / "docs" / "architecture.md").read_text().split())
    for files_at_most, lines_at_most in ((LIBRARY_FILES, LIBRARY_LINES), (RANK_FILES, RANK_LINES)):
        assert f"at most {lines_at_most:,} lines in {files_at_most} files" in page


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
