"""Unit tests: no torch, no processes, milliseconds each."""

import os

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
