"""The end of a process of ours that does not die: what the run has to say comes out all the same."""

from __future__ import annotations

import io
import subprocess

import pytest

from ppwork.launcher import torchrun
from ppwork.launcher.torchrun import running


class HangsInADriver:
    """A process that SIGKILL does not end."""

    pid, stdin = 4711, None

    def poll(self):
        return None

    def terminate(self):
        pass

    kill = terminate

    def wait(self, timeout):
        raise subprocess.TimeoutExpired("stages", timeout)


@pytest.fixture
def log(monkeypatch):
    monkeypatch.setattr(torchrun.subprocess, "Popen", lambda *_, **__: HangsInADriver())
    monkeypatch.setattr(torchrun, "family_of", lambda _: [])
    return io.BytesIO()


def test_a_process_that_does_not_die_does_not_take_the_place_of_what_the_run_returned(log):
    with running(["x"], {}, log):
        pass
    assert b"pid 4711 could not be killed" in log.getvalue()


def test_nor_of_what_it_raised(log):
    with pytest.raises(KeyboardInterrupt), running(["x"], {}, log):
        raise KeyboardInterrupt
