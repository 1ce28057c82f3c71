"""The folder of a run: what is made, and what is refused before any rank starts."""

import errno
import os
import shutil
from pathlib import Path

import pytest

from ppwork.errors import PlanError
from ppwork.records import folder
from ppwork.records.folder import new_run_dir


@pytest.mark.parametrize("name", ["", "bad\udcff"])
def test_a_folder_without_a_name_in_utf_8_is_refused(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(PlanError, match="no name, or one that is not UTF-8"):
        new_run_dir(name)
    assert list(tmp_path.iterdir()) == []


def test_a_working_folder_that_was_removed_is_refused(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(PlanError, match="cannot be used: No such file"):
        new_run_dir(None)


def test_a_folder_whose_name_no_system_takes_is_refused():
    with pytest.raises(PlanError, match="no name"):
        new_run_dir("a\0b")


def test_run_dir_is_made_with_its_parents_and_is_empty(tmp_path):
    made = new_run_dir(tmp_path / "a" / "b")
    assert made == tmp_path / "a" / "b"
    assert list(made.iterdir()) == []


def test_empty_run_dir_is_taken_and_becomes_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    assert new_run_dir(Path("out")) == tmp_path / "out"


def test_run_dir_that_is_not_empty_is_refused_and_left_alone(tmp_path):
    (tmp_path / "kept").write_text("x")
    with pytest.raises(PlanError, match="exists and is not empty; nothing was overwritten"):
        new_run_dir(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert (tmp_path / "kept").read_text() == "x"


@pytest.mark.parametrize("below", ["", "run"], ids=["the file", "below a file"])
def test_file_in_the_way_of_the_run_dir_is_refused(tmp_path, below):
    (tmp_path / "file").write_text("x")
    with pytest.raises(PlanError, match=r"cannot be used: .*/file is a file\.\n  check first: another --out"):
        new_run_dir(tmp_path / "file" / below)
    assert (tmp_path / "file").read_text() == "x"


def test_run_dir_on_a_disk_that_refuses_is_refused_in_its_words(tmp_path, monkeypatch):
    """Root may write anywhere, so the answer of the system is faked here."""

    def refuse(path, **how):
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(Path, "touch", refuse)
    with pytest.raises(PlanError, match="cannot be used: Read-only file system"):
        new_run_dir(tmp_path / "out")


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write anywhere")
def test_run_dir_without_write_permission_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(PlanError, match="cannot be used: Permission denied"):
        new_run_dir(tmp_path / "out")


def test_default_run_dirs_are_under_runs_and_unique_within_a_second(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder.time, "strftime", lambda form: "20261121-050000-run")
    names = [new_run_dir(None).relative_to(tmp_path).as_posix() for _ in range(3)]
    assert names == [f"runs/20261121-050000-run{suffix}" for suffix in ("", "-2", "-3")]


def test_run_dir_on_a_full_disk_is_refused_with_its_name_and_what_is_free(tmp_path, monkeypatch):
    """F20: told before start."""
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(folder.shutil, "disk_usage", lambda path: usage._replace(free=12_340_000))
    with pytest.raises(PlanError) as refused:
        new_run_dir(tmp_path / "out")
    assert str(refused.value).startswith(
        f"The output folder {tmp_path / 'out'} has 12.3 MB free; a run needs 64 MB."
    )
    assert "--out" in refused.value.check_first
