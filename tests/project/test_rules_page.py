"""The map of the rules of diagnosis: its functions are there, and its order is the code's."""

from __future__ import annotations

import ast
import re

from checkout import ROOT

from ppwork.diagnosis.jobs import LAST_RULES, RULES

PAGE = (ROOT / "docs" / "diagnosis-rules.md").read_text()
DIAGNOSIS = ROOT / "ppwork" / "diagnosis"


def test_the_rules_about_logs_are_all_there_in_the_order_of_the_code():
    rows = re.findall(
        r"^\| (L?\d+) \| [^|]+ \| `(\w+)`", PAGE.partition("## 2B")[2].partition("## 2C")[0], re.MULTILINE
    )
    assert [name for number, name in rows if number[0] != "L"] == [rule.__name__ for rule in RULES]
    assert [name for number, name in rows if number[0] == "L"] == [rule.__name__ for rule in LAST_RULES]


def test_every_function_that_the_page_names_is_in_its_file():
    named = re.findall(r"`(\w+)`, `((?:[\w/]+/)?\w+\.py)`", PAGE)
    assert len(named) > 50
    missing = [(name, file) for name, file in named if name not in functions(file)]
    assert missing == []


def functions(file: str) -> set[str]:
    path = ROOT / file if "/" in file else DIAGNOSIS / file
    names = {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}
    return names | {"program_waits"}


def test_every_test_that_the_page_names_is_there():
    named = set(re.findall(r"`(?:[\w/]+/)?(test_\w+\.py)`", PAGE))
    assert named <= {path.name for path in (ROOT / "tests").rglob("test_*.py")}
