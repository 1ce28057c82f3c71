"""Threads that die are written down, and shown as before."""

import threading

from ppwork.records.threads import MOST, dead_threads, threads_file, written_down


def die(error, name="reader"):
    def run():
        raise error

    thread = threading.Thread(target=run, name=name)
    thread.start()
    thread.join()


def test_threads_that_die_are_written_down_and_shown_and_those_that_end_are_not(tmp_path, monkeypatch):
    shown = []
    monkeypatch.setattr(threading, "excepthook", lambda args: shown.append(args.exc_value))
    before = threading.excepthook
    with written_down(tmp_path, 1):
        die(SystemExit(3))
        assert not threads_file(tmp_path, 1).exists()
        die(OSError("gone \udcff.\nand more"))
        die(KeyError(), name="writer")
    die(ValueError("outside of the body"))
    assert threading.excepthook is before
    first, second = dead_threads(tmp_path, 1)
    assert first.error == "OSError: gone \\udcff"
    assert first.source.startswith(f"{__file__}:")
    assert str(first) == f"thread 'reader' died at {first.source} of {first.error}"
    assert (second.name, second.error) == ("writer", "KeyError")
    assert [type(error) for error in shown] == [SystemExit, OSError, KeyError, ValueError]


def test_a_pool_that_loses_thread_after_thread_fills_no_disk_and_a_broken_file_is_none(tmp_path, monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    with written_down(tmp_path, 0):
        for _ in range(MOST + 3):
            die(OSError("x" * 9999))
    assert len(dead_threads(tmp_path, 0)) == MOST
    assert threads_file(tmp_path, 0).stat().st_size < 20_000
    threads_file(tmp_path, 0).write_bytes(b"[{")
    assert dead_threads(tmp_path, 0) == []
    assert dead_threads(tmp_path, 1) == []
