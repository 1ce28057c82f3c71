"""Unit tests: no ranks, and one process, but for tests that are marked ``processes``.

Torch is imported by the tests of rooms that use it.
"""

import os
import subprocess

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

STARTS = [
    (subprocess.Popen, "__init__"),
    *((os, name) for name in ("fork", "forkpty", "posix_spawn", "posix_spawnp", "system")),
]
"""What starts a process. ``sys.addaudithook`` would hear of all of them, but up to Python 3.11 a hook lets a
second thread into ``sys.settrace``, where it dies: coverage traces every thread (python/cpython#98257)."""


@pytest.fixture(autouse=True)
def only_marked_tests_start_processes(request, monkeypatch):
    """So that ``-m "not processes"`` starts none."""
    if request.node.get_closest_marker("processes"):
        yield
        return
    started = []

    def note_first(name, start):
        def noted(*args, **options):
            started.append(name)
            return start(*args, **options)

        return noted

    for owner, name in STARTS:
        monkeypatch.setattr(owner, name, note_first(name, getattr(owner, name)))
    yield
    assert started == [], "a test that starts a process is marked `processes`"
