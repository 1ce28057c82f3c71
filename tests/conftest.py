"""For all tests: only pytest's own processes are measured by coverage, and not what a test starts."""

import os

if "PYTEST_XDIST_WORKER" in os.environ:
    # A program under coverage is half as quick, and is not what its test is about.
    for name in ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"):
        os.environ.pop(name, None)
