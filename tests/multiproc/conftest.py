"""Real ranks for tests: started by us, watched by recorded process, and never left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

HERE = Path(__file__).parent
END_S = 30.0
"""No test job may take longer than this to end by itself."""

# A shell starts background jobs with SIGINT ignored, and children inherit that: Ctrl-C would reach nobody.
signal.signal(signal.SIGINT, signal.default_int_handler)


def descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def wait_for(fact, deadline_s: float = END_S):
    """Wait for a fact (a function that becomes true) and return it; fail with its name at the deadline."""
    end = time.monotonic() + deadline_s
    while time.monotonic() < end:
        if value := fact():
            return value
        time.sleep(0.02)  # the interval of asking, not a wait to be ready
    raise AssertionError(f"not true within {deadline_s} s: {getattr(fact, '__name__', fact)}")


@pytest.fixture(autouse=True)
def in_toy_folder(monkeypatch):
    """Stages are found by import path from the folder one launches in."""
    monkeypatch.chdir(HERE)


@pytest.fixture(autouse=True)
def warnings_are_errors_in_ranks(monkeypatch):
    """What a newer torch will take away must fail here first, in torchrun and the ranks as well."""
    monkeypatch.setenv("PYTHONWARNINGS", "error::FutureWarning,error::DeprecationWarning")


@pytest.fixture(autouse=True)
def no_process_is_left():
    """After every test: nothing that this process started is alive."""
    before = set(descendants())
    yield
    left = [process for process in descendants() if process not in before]
    _, left = psutil.wait_procs(left, timeout=3)
    names = [" ".join(process.cmdline()) for process in left]
    for process in left:
        process.kill()
    assert not names, f"left running: {names}"


@dataclass
class Ranks:
    """Plain processes with torchrun's variables: the quick way to a world whose ranks differ."""

    processes: list[subprocess.Popen[bytes]]

    def wait(self, deadline_s: float = END_S) -> list[int]:
        end = time.monotonic() + deadline_s
        return [process.wait(max(0.1, end - time.monotonic())) for process in self.processes]


@pytest.fixture
def start_ranks(tmp_path):
    """Start one process per command, rank by rank, with a common store file."""
    started: list[subprocess.Popen[bytes]] = []

    def start(commands: list[list[str]], environments: dict[int, dict[str, str]] | None = None) -> Ranks:
        for rank, command in enumerate(commands):
            environment = {
                **os.environ,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                "WORLD_SIZE": str(len(commands)),
                "GLOO_SOCKET_IFNAME": "lo",
                "OMP_NUM_THREADS": "1",
                "PPWORK_STORE": str(tmp_path / "store"),
                **(environments or {}).get(rank, {}),
            }
            started.append(subprocess.Popen([sys.executable, *command], env=environment))
        return Ranks(started)

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
