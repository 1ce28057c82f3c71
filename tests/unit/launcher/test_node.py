"""A real node without ranks: it leaves with its launcher, and sends no line that is not its own."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from ppwork.launcher.nodes import node, wire
from ppwork.launcher.nodes.node import FOLDER, LOGS, MARKER
from ppwork.launcher.nodes.wire import Reader, lines_of
from ppwork.process import ORPHANED
from ppwork.records.hosts import host_logs

pytestmark = pytest.mark.processes

LEAVE_S = 15.0
"""For a node to leave, on a loaded machine; less than it gives a launcher that is silent at first."""


class Launcher:
    """One end of a node's pipes."""

    def __init__(self, tmp_path):
        command = [sys.executable, "-P", "-m", "ppwork", "node", "0"]
        self.node = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=tmp_path)
        self._reader, self._came = Reader(), []

    def say(self, message):
        self.node.stdin.write(lines_of(message, 0))
        self.node.stdin.flush()

    def hear(self):
        while not self._came:
            data = self.node.stdout.read1()
            assert data, f"the node left with {self.node.wait()}"
            self._came += [message for _, message in self._reader.feed(data)]
        return self._came.pop(0)


@pytest.fixture
def launcher(tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    launcher = Launcher(tmp_path)
    yield launcher
    launcher.node.kill()
    launcher.node.wait()
    launcher.node.stdin.close()
    launcher.node.stdout.close()


def look(folder, **more):
    asked = {"marker": "", "freeze_s": 30.0, **more}
    return wire.Look(secret=b"s" * 64, run="a run/..", folder=str(folder), cwd="/", **asked)


def test_a_node_finds_a_shared_folder_answers_beats_and_leaves_when_told(launcher, tmp_path):
    hello = launcher.hear()
    assert (hello.wire, hello.python) == (wire.VERSION, f"3.{sys.version_info.minor}")
    (tmp_path / MARKER).write_text("word")
    launcher.say(look(tmp_path, marker="word", needs=(str(tmp_path / MARKER), "/none.mp4")))
    found = launcher.hear()
    assert (found.folder, found.shared, found.missing) == (str(tmp_path), True, ("/none.mp4",))
    launcher.say(wire.Beat(7))
    answer = launcher.hear()
    assert answer.sent_ns == 7
    assert answer.now_ns > 0
    launcher.say(wire.EndRun("over"))
    assert launcher.node.wait(LEAVE_S) == 0


@pytest.mark.parametrize("how", ["silence", "the end of the pipe"])
def test_a_node_leaves_with_its_launcher_and_nothing_of_it_stays(launcher, tmp_path, how):
    """N17: a launcher that was stopped is silent, one that was killed closes the pipe."""
    launcher.hear()
    launcher.say(look(tmp_path / "another", marker="word", freeze_s=0.5 if how == "silence" else 30.0))
    found = launcher.hear()
    assert not found.shared
    assert found.folder.startswith(f"{tmp_path}/ppwork-a-run-..-")
    if how != "silence":
        launcher.node.stdin.close()
    assert launcher.node.wait(LEAVE_S) == ORPHANED
    assert list(tmp_path.iterdir()) == []


def test_words_in_braces_are_folders_in_our_own_words_alone(tmp_path, monkeypatch):
    """A program's own argument comes to it as it was given, as on one host."""
    ran = []
    monkeypatch.setattr(node, "torchrun", lambda program, **_: ran.extend(program) or 0)
    start = wire.StartRun(
        program=("--log-dir", LOGS, "rank", FOLDER, "/mine.py"), arguments=(FOLDER, LOGS), plan="", ranks=1,
        first=1, hosts=2, address="", port=0, interface="", run_id="", threads=1, start_s=1.0, limit_s=1.0,
    )  # fmt: skip
    node._run(SimpleNamespace(freeze_s=1.0), start, SimpleNamespace(host=1), None, tmp_path, None)
    assert ran == [
        "--log-dir", str(host_logs(tmp_path, 1)), "rank", str(tmp_path), "/mine.py", FOLDER, LOGS,
    ]  # fmt: skip


def test_a_node_says_why_it_cannot_go_on(launcher):
    launcher.hear()
    launcher.say(wire.Listen(loopback=True, others=False, public=False))
    refused = launcher.hear()
    assert isinstance(refused, wire.Refused)
    assert refused.what == "The launcher said 'listen' out of turn."
    assert launcher.node.wait(LEAVE_S) == 1
