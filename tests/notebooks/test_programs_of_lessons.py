"""Files that the cells of lessons write: a program of one lesson does not overwrite that of another."""

from __future__ import annotations

import re
from collections import defaultdict

from anatomy import FOLDER, code_cells, read

WRITTEN = re.compile(r"(?:^%%ranks .*--file |^%%writefile |^%%stages )(my_\w+\.py)")


def test_no_two_lessons_write_one_file():
    """A learner's mended program of an earlier lesson is still there after a later one."""
    lessons = defaultdict(set)
    for path in sorted(FOLDER.glob("[0-9][0-9]-*.ipynb")):
        for cell in code_cells(read(path).notebook):
            if found := WRITTEN.search(cell.source):
                lessons[found[1]].add(path.name[:2])
    assert len(lessons) > 30
    assert {name: where for name, where in lessons.items() if len(where) > 1} == {}
