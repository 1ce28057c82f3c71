"""The table of guards stays true: each text is there once, each test exists, and the runner can tell."""

from __future__ import annotations

import ast
import importlib.util
import sys

import pytest
from checkout import ROOT


@pytest.fixture(scope="module")
def mutations():
    spec = importlib.util.spec_from_file_location("mutations", ROOT / "tests" / "mutations.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutations"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


def test_every_guard_stands_once_where_the_table_says_and_the_mutant_is_python(mutations):
    for one in mutations.MUTATIONS:
        text = (ROOT / one.file).read_text()
        assert text.count(one.old) == 1, one.name
        ast.parse(text.replace(one.old, one.new))
    assert len({one.name for one in mutations.MUTATIONS}) == len(mutations.MUTATIONS)


def test_every_test_of_the_table_exists(mutations):
    for one in mutations.MUTATIONS:
        assert one.tests, one.name
        for test in one.tests:
            file, _, name = test.partition("::")
            defined = {
                node.name
                for node in ast.walk(ast.parse((ROOT / file).read_text()))
                if isinstance(node, ast.FunctionDef)
            }
            assert name.partition("[")[0] in defined, (one.name, test)


def test_a_failing_test_is_told_from_a_passing_one_and_from_a_file_that_does_not_load(mutations, tmp_path):
    (tmp_path / "test_a.py").write_text("def test_bad():\n    assert False\ndef test_good():\n    pass\n")
    (tmp_path / "test_b.py").write_text("import no_such_module\n")
    failed, _ = mutations.run_tests(tmp_path, ("test_a.py",))
    assert failed == ["test_a.py::test_bad"]
    failed, said = mutations.run_tests(tmp_path, ("test_b.py",))
    assert failed == []
    assert "no_such_module" in said
