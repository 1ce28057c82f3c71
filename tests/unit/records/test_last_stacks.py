"""The last stacks of a rank: which signal they tell of, and whose faulthandler is left alone."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys

import pytest

from ppwork.records import last_stacks as module
from ppwork.records.last_stacks import crashes, last_stacks, signal_of, stacks_file

DUMP = 'Thread 0x1 (most recent call first):\n  File "my_loop.py", line 7 in serve\n'
PROGRAM = """
import os, signal, sys
from ppwork.records import last_stacks
last_stacks.show_on_console()
def told(*_): print("handled", flush=True)
with last_stacks.kept(sys.argv[1], 3):
    if not os.fork():
        os.kill(os.getpid(), signal.SIGTERM)
    os.wait()
    signal.signal(signal.SIGTERM, told)
os.kill(os.getpid(), signal.SIGTERM)
"""


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("", 0),
        (DUMP, signal.SIGTERM),
        (f"Timeout (0:00:49)!\n{DUMP}", 0),
        (f"{DUMP}Fatal Python error: Bus error\n\n{DUMP}", signal.SIGBUS),
        (f"Fatal Python error: _enter_buffered_busy: could not acquire lock\n{DUMP}", signal.SIGABRT),
    ],
)
def test_the_signal_is_read_from_what_faulthandler_wrote(text, number):
    assert signal_of(text) == number


def test_only_a_crash_is_shown_by_the_others_and_damage_is_nothing(tmp_path):
    for rank, text in enumerate((DUMP, f"Fatal Python error: Aborted\n\n{DUMP}", "")):
        stacks_file(tmp_path, rank).write_text(text)
    (tmp_path / "stacks-rankx.txt").write_text("Fatal Python error: Aborted")
    stacks_file(tmp_path, 4).mkdir()
    assert [*crashes(tmp_path)] == [1]
    assert last_stacks(tmp_path, 4) == last_stacks(tmp_path, 5) == ""


def test_a_users_own_faulthandler_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "_shown_by_us", False)
    assert faulthandler.is_enabled()  # pytest's
    module.show_on_console()
    with module.kept(tmp_path, 0) as file:
        assert file is None
    assert [*tmp_path.iterdir()] == []


@pytest.mark.processes
def test_a_child_leaves_nothing_and_a_handler_that_the_body_set_stays(tmp_path):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONFAULTHANDLER"}
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    ended = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "handled\n"
    assert [*tmp_path.iterdir()] == []
