"""What is refreshed is a notebook; anything else is refused before a kernel starts."""

from __future__ import annotations

import os

import nbformat
import pytest

from ppwork.errors import PlanError
from ppwork.lab.course.refresh import normalised, refresh
from ppwork.launcher.view import QUIET_VARIABLE


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


def _said(text, name="stdout"):
    return nbformat.v4.new_output("stream", name=name, text=text)


def test_what_one_stream_printed_in_pieces_is_one_output():
    pieces = [_said("rank 0 "), _said("is done\n"), _said("x\n", "stderr"), _said("y\n")]
    cell = nbformat.v4.new_code_cell("1", outputs=pieces)
    (found,) = normalised(nbformat.v4.new_notebook(cells=[cell])).cells
    assert [each.text for each in found.outputs] == ["rank 0 is done\n", "x\n", "y\n"]


@pytest.mark.processes
def test_a_page_names_its_files_as_in_anybodys_copy_and_shows_no_running_run(tmp_path, monkeypatch):
    monkeypatch.delenv(QUIET_VARIABLE, raising=False)
    cell = nbformat.v4.new_code_cell(
        "import os\nprint('log: ' + os.path.abspath('runs/it.log'))\nos.path.abspath('it.txt')", id="paths"
    )
    path = tmp_path / "it.ipynb"
    nbformat.write(nbformat.v4.new_notebook(cells=[cell]), path)
    refresh(path)
    said, value = nbformat.read(path, as_version=4).cells[0].outputs
    assert (said.text, value.data["text/plain"]) == ("log: runs/it.log\n", "'it.txt'")
    quiet = nbformat.v4.new_code_cell(f"import os\nprint(os.environ['{QUIET_VARIABLE}'])", id="quiet")
    nbformat.write(nbformat.v4.new_notebook(cells=[quiet]), path)
    refresh(path)
    assert nbformat.read(path, as_version=4).cells[0].outputs[0].text == "1\n"
    assert QUIET_VARIABLE not in os.environ, "what this process starts later would say nothing, either"
