"""A file is written whole or not at all."""

from pathlib import Path

import pytest

from ppwork.records.files import write_whole


def test_write_replaces_a_whole_file(tmp_path):
    path = tmp_path / "a.json"
    write_whole(path, b"old and longer")
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


class Broken(type(Path())):
    """A path whose temporary sibling fails at one step, as on a full disk."""

    def write_bytes(self, data):
        if self.name.startswith("."):
            super().write_bytes(data[: len(data) // 2])
            raise OSError(28, "No space left on device")
        return super().write_bytes(data)


def test_write_that_fails_midway_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="No space left"):
        write_whole(Broken(path), b"new data")
    assert path.read_bytes() == b"old"
    assert list(tmp_path.iterdir()) == [path]


def test_rename_that_fails_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "a.json"
    folder.mkdir()
    with pytest.raises(OSError, match="directory"):
        write_whole(folder, b"data")
    assert list(tmp_path.iterdir()) == [folder]
