"""The questions of the course: each is whole, and its lesson asks it."""

from __future__ import annotations

import json
import re

import pytest
from checkout import ROOT
from question_problems import problem_of

from ppwork.lab.question import FOLDER, questions_of

FILES = sorted(FOLDER.glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_question_is_whole_and_asked_once_by_its_lesson(path):
    (lesson,) = (ROOT / "notebooks").glob(f"{path.stem}-*.ipynb")
    cells = json.loads(lesson.read_text())["cells"]
    source = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    for name, asked in questions_of(path.stem).items():
        assert problem_of(asked) == ""
        assert len(re.findall(rf'predict\(\s*"{path.stem}\.{name}"', source)) == 1
