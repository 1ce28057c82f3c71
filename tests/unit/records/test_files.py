"""A file is written whole or not at all."""

import os
import resource
import secrets

import pytest

from ppwork.records.files import write_whole


def test_write_replaces_a_whole_file(tmp_path):
    path = tmp_path / "a.json"
    write_whole(path, b"old and longer")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_write_that_fails_midway_leaves_the_old_file_and_nothing_else(tmp_path):
    """A limit on file sizes fails in the same call as a full disk."""
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            write_whole(path, b"new data")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("guessed", [False, True])
def test_a_link_that_waits_at_the_temporary_name_is_not_followed(tmp_path, monkeypatch, guessed):
    """Who can write into a run's folder must not be able to have another file of ours overwritten."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    (tmp_path / f".a.json.{os.getpid()}").symlink_to(precious)
    (tmp_path / ".a.json.7").symlink_to(precious)
    if guessed:
        monkeypatch.setattr(secrets, "randbits", lambda _: 7)
        with pytest.raises(FileExistsError):
            write_whole(tmp_path / "a.json", b"new")
    else:
        write_whole(tmp_path / "a.json", b"new")
    assert precious.read_bytes() == b"precious"


def test_rename_that_fails_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "a.json"
    folder.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(folder, b"data")
    assert list(tmp_path.iterdir()) == [folder]
