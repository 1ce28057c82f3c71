"""``ppwork new`` and ``ppwork lessons`` write into a free folder, whole or not at all."""

from __future__ import annotations

import errno
import re
from pathlib import Path

import nbformat
import pytest

from ppwork.errors import PlanError, UnavailableError
from ppwork.lab import starter
from ppwork.lab.starter import FILES, PROJECT, copy_course, new_project


def test_a_new_project_has_every_file_and_its_own_name(tmp_path):
    assert [path.name for path in new_project(tmp_path / "my-pipeline")] == list(FILES)
    assert (tmp_path / "my-pipeline" / "README.md").read_text().startswith("# my-pipeline\n")
    assert sorted(path.name for path in PROJECT.iterdir() if path.is_file()) == sorted(FILES)
    nbformat.validate(nbformat.read(tmp_path / "my-pipeline" / "pipeline.ipynb", as_version=4))


@pytest.mark.parametrize("write", [new_project, copy_course])
def test_a_folder_with_something_in_it_is_left_alone(tmp_path, write):
    (tmp_path / "mine.txt").write_text("mine")
    for folder in (tmp_path, tmp_path / "mine.txt"):
        with pytest.raises(PlanError, match="no empty folder"):
            write(folder)
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


def test_the_course_comes_with_what_its_pages_link_to(tmp_path):
    lessons = copy_course(tmp_path / "course")
    assert lessons[0].name == "00-start-here.ipynb"
    solutions = {path.name for path in (tmp_path / "course" / "notebooks" / "solutions").iterdir()}
    assert solutions == {path.name for path in lessons}
    assert (tmp_path / "course" / "GLOSSARY.md").is_file()
    assert list((tmp_path / "course" / "notebooks").glob("appendix-*.ipynb"))
    for page in ("stages", "prototype", "pipelines"):
        path = tmp_path / "course" / "docs" / f"{page}.md"
        links = [link for link in re.findall(r"\]\(([^)#]+)", path.read_text()) if "://" not in link]
        assert len(links) > 3
        assert [link for link in links if not (path.parent / link).is_file()] == []


def test_an_installation_without_lessons_says_where_they_would_be(tmp_path, monkeypatch):
    monkeypatch.setattr(starter, "CHECKOUT", tmp_path / "a")
    monkeypatch.setattr(starter, "INSTALLED", tmp_path / "b")
    with pytest.raises(UnavailableError, match="has no lessons"):
        copy_course(tmp_path / "course")
    assert not (tmp_path / "course").exists()


@pytest.mark.parametrize("was_there", [True, False])
def test_a_project_that_does_not_fit_on_the_disk_leaves_nothing(tmp_path, monkeypatch, was_there):
    folder, write_text = tmp_path / "mine", Path.write_text
    if was_there:
        folder.mkdir()

    def full(path, text):
        write_text(path, text[:10])
        if path.name == FILES[2]:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(PlanError, match="No space left"):
            new_project(folder)
    assert list(tmp_path.rglob("*")) == [folder] * was_there
    assert len(new_project(folder)) == len(FILES)


@pytest.mark.parametrize("write", [new_project, copy_course])
def test_a_name_that_no_folder_can_have_is_bad_input(tmp_path, write):
    with pytest.raises(PlanError, match="File name too long"):
        write(tmp_path / ("a" * 300))
