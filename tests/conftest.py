"""For all tests: which files come first, and what is measured by coverage: pytest's own processes alone."""

import os

import pytest

LONGEST_FIRST = (
    "test_processes.py",
    "test_diagnose_others.py",
    "test_papermill.py",
    "test_decks.py",
    "test_site.py",
    "test_in_jupyterlab.py",
    "test_warm.py",
    "test_kernels.py",
    "test_main_job.py",
    "test_sweep_lesson.py",
    "test_mistakes.py",
    "test_benchmark_ranks.py",
    "test_soak.py",
)
"""Files that take long; a worker that begins one at the end has the others wait for it."""

if "PYTEST_XDIST_WORKER" in os.environ:
    # A program under coverage is half as quick, and is not what its test is about.
    for name in ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"):
        os.environ.pop(name, None)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items) -> None:
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}
    items.sort(key=lambda item: place.get(item.path.name, len(place)))
