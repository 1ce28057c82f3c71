"""Real ranks for tests: started by us, watched by recorded process, and never left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import sys

import psutil
import pytest
from checkout import SUPPORT
from kernels import kernel
from launched_jobs import all_gone
from started_ranks import WARNINGS, Ranks, start_rank
from waiting import descendants

from ppwork.__main__ import main
from ppwork.launcher.torchrun import child_environment
from ppwork.launcher.warm import Started, WarmLauncher
from ppwork.process import WARM_VARIABLE


@pytest.fixture(autouse=True)
def in_toy_folder(monkeypatch):
    """Stages are found by import path from the folder one launches in."""
    monkeypatch.chdir(SUPPORT)


@pytest.fixture(autouse=True, scope="module")
def warnings_are_errors_in_ranks():
    """What a newer torch will take away must fail here first, in torchrun and the ranks as well."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in WARNINGS.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def warm_launcher():
    """One for each process of pytest, also for the kernels and commands that tests start."""
    launcher = WarmLauncher({**child_environment(1), **WARNINGS})
    yield launcher
    launcher.close()


@pytest.fixture(autouse=True, scope="module")
def warm_unless_marked_cold(request, warnings_are_errors_in_ranks):
    """Ranks are forked where their start is not the subject; a file marked ``cold`` has them exec'd."""
    cold = any(mark.name == "cold" for mark in request.node.iter_markers())
    chosen = "0" if cold else str(request.getfixturevalue("warm_launcher").address)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(WARM_VARIABLE, chosen)
        yield


@pytest.fixture(autouse=True)
def no_process_is_left():
    """After every test: nothing that this process started is alive."""
    before = set(descendants())
    yield
    left = [process for process in descendants() if process not in before]
    names = []
    for process in all_gone(left, 3.0):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has ended since
            names.append(" ".join(process.cmdline()))
            process.kill()
    assert not names, f"left running: {names}"


@pytest.fixture(scope="module")
def messages_of(warm_unless_marked_cold):
    """What a cell publishes: all that a file has run in one kernel."""
    with kernel() as run:
        yield run


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command in this process, without the second that one of its own takes to start."""

    def run(*arguments: str) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["ppwork", *arguments])
        return main(), capsys.readouterr().err

    on_sigterm = signal.getsignal(signal.SIGTERM)
    yield run
    signal.signal(signal.SIGTERM, on_sigterm)


@pytest.fixture
def start_ranks(tmp_path):
    """Start one process per command, rank by rank, with a common store file."""
    started: list[Started] = []

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
            started.append(start_rank([sys.executable, *command], environment))
        return Ranks(started)

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.wait()
