"""Unit tests: no torch, no processes, milliseconds each."""

from hypothesis import HealthCheck, settings

settings.register_profile(
    "ppwork",
    deadline=None,  # the machine may be busy; the limit of each test is pytest-timeout's
    max_examples=100,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("ppwork")
