"""For all tests, those of `tests` and the cells of lessons: their order, what coverage sees, kernels."""

from __future__ import annotations

import os
import signal

import nbval.kernel
import pytest
from kernels import SocketKernelManager

from ppwork.launcher.torchrun import child_environment
from ppwork.launcher.warm import WarmLauncher
from ppwork.process import WARM_VARIABLE, importing

LONGEST_FIRST = (
    "test_processes.py",
    "test_site.py",
    "13-how-does-it-run-on-several-machines.ipynb",
    "test_decks.py",
    "test_in_jupyterlab.py",
    "test_diagnose_others.py",
    "08-what-happens-when-something-dies.ipynb",
    "test_traced_programs.py",
    "test_warm.py",
    "test_user_job.py",
    "test_bad_programs.py",
    "test_examples.py",
    "test_nodes.py",
    "test_guards.py",
    "test_page_code.py",
    "test_exercise_programs_08.py",
    "15-which-of-the-documented-claims-hold-here.ipynb",
    "test_main_job.py",
    "test_mistakes.py",
    "test_sweep_lesson.py",
    "test_kernels.py",
    "test_benchmark_ranks.py",
    "test_soak.py",
    "test_cli.py",
    "test_working_folder.py",
)
"""Files that take long; a worker that begins one at the end has the others wait for it. Then come the other
lessons, and then the other files."""
LESSON = ".ipynb"

# A shell starts background jobs with SIGINT ignored, and children inherit that: Ctrl-C would reach nobody.
signal.signal(signal.SIGINT, signal.default_int_handler)

if "PYTEST_XDIST_WORKER" in os.environ:
    # A program under coverage is half as quick, and is not what its test is about.
    for name in ("COVERAGE_PROCESS_CONFIG", "COVERAGE_PROCESS_START"):
        os.environ.pop(name, None)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Find all tests without the garbage collector, which would find none, and later not see them again."""
    with importing():
        return (yield)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items) -> None:
    """Put long files first, and the cells of a lesson into their order; their warnings are a learner's."""
    place = {name: number for number, name in enumerate(LONGEST_FIRST)}

    def key(item) -> tuple[int, str, int]:
        if item.path.suffix == LESSON:
            return place.get(item.path.name, len(place)), str(item.path), item.cell_num
        return place.get(item.path.name, len(place) + 1), "", 0

    items.sort(key=key)
    for item in items:
        if item.path.suffix == LESSON:
            item.add_marker(pytest.mark.filterwarnings("default"))


def pytest_configure(config) -> None:
    config.pluginmanager.register(LessonKernels(), "lesson kernels")


class LessonKernels:
    """The kernels of lessons, each started with its first cell: all of one worker share a warm launcher."""

    def __init__(self) -> None:
        self._launcher: WarmLauncher | None = None

    def launcher(self) -> WarmLauncher:
        if self._launcher is None:
            self._launcher = WarmLauncher(child_environment(1))
        return self._launcher

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self, item):
        if item.path.suffix != LESSON:
            return (yield)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PPWORK_NONINTERACTIVE", "1")
            patch.setenv(WARM_VARIABLE, str(self.launcher().address))
            patch.setattr(nbval.kernel, "KernelManager", SocketKernelManager)
            return (yield)

    def pytest_unconfigure(self) -> None:
        if self._launcher is not None:
            self._launcher.close()


@pytest.fixture(scope="session")
def kernel_launcher(pytestconfig) -> WarmLauncher:
    """The warm launcher for kernels that a test starts by other means."""
    return pytestconfig.pluginmanager.getplugin("lesson kernels").launcher()
