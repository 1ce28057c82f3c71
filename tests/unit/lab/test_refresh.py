"""What is refreshed is a notebook; anything else is refused before a kernel starts."""

from __future__ import annotations

import os

import pytest

from ppwork.errors import PlanError
from ppwork.lab.course.refresh import refresh


@pytest.mark.parametrize(
    "content", [None, "folder", "pipe", "no JSON", "[]", "{}", '{"nbformat": 4}', "\xff"]
)
def test_what_is_no_notebook_is_refused(tmp_path, content):
    path = tmp_path / "it.ipynb"
    if content == "folder":
        path.mkdir()
    elif content == "pipe":
        os.mkfifo(path)
    elif content is not None:
        path.write_bytes(content.encode("latin-1"))
    with pytest.raises(PlanError, match=r"The notebook .*it\.ipynb does not read"):
        refresh(path)
