"""The order in which test files begin, which ``conftest.py`` has by their names."""

from __future__ import annotations

import ast

from checkout import ROOT


def test_every_file_that_begins_first_is_there():
    """One that was renamed would begin last, and the other workers wait for it."""
    (names,) = (
        ast.literal_eval(node.value)
        for node in ast.parse((ROOT / "conftest.py").read_text()).body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "LONGEST_FIRST"
    )
    files = {path.name for folder in ("tests", "notebooks") for path in (ROOT / folder).rglob("*")}
    assert set(names) - files == set()
