"""Unit tests: no ranks, and one process, but for tests that are marked ``processes``.

Torch is imported by the tests of rooms that use it.
"""

import os
import sys

import pytest
from hypothesis import HealthCheck, settings

# rich keeps the width that it finds here when a console is made; tests say their own with each command.
os.environ.pop("COLUMNS", None)

settings.register_profile(
    "ppwork",
    deadline=None,  # the machine may be busy; the limit of each test is pytest-timeout's
    max_examples=100,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ppwork")

STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
"""Python's audit events of a new process."""
_started: list[str] = []


def _note_start(event: str, args: tuple) -> None:
    if event in STARTS:
        _started.append(f"{event} {args[0] if args else ''}")


sys.addaudithook(_note_start)


@pytest.fixture(autouse=True)
def only_marked_tests_start_processes(request):
    """So that ``-m "not processes"`` starts none."""
    _started.clear()
    yield
    if not request.node.get_closest_marker("processes"):
        assert not _started, "a test that starts a process is marked `processes`"
