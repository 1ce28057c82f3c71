"""A notebook's kernel that launched a run is interrupted or restarted: no rank is left.

One that is killed is a launcher that is killed (``test_processes.py``).
"""

from __future__ import annotations

import os

import psutil
import pytest
from checkout import SUPPORT
from kernels import start_new_kernel
from launched_jobs import GONE_S, SCRIPT, agent_and_ranks, all_gone, kill
from waiting import END_S, wait_for

from ppwork.launcher.processes import KILL_S
from ppwork.launcher.torchrun import POLITE_S
from ppwork.records.spans import read_entries

pytestmark = [pytest.mark.multiproc, pytest.mark.cold]


class Notebook:
    """A real kernel; once it has come to mid-run it sits in a cell which launched a run."""

    def __init__(self, folder):
        environment = {**os.environ, "XDG_RUNTIME_DIR": str(folder)}
        self.manager, self.client = start_new_kernel(env=environment, cwd=str(SUPPORT))
        self.agent: psutil.Process | None = None
        self.ranks: list[psutil.Process] = []

    def come_to_mid_run(self, run_dir):
        # A kernel refuses what comes while it ends a cell that failed, unless the cell says otherwise.
        self.client.execute(SCRIPT.replace("sys.argv[1]", repr(str(run_dir))), stop_on_error=False)
        wait_for(lambda: any(entry.name == "emit" for entry in read_entries(run_dir, 0)), 2 * END_S)
        self.agent, self.ranks = agent_and_ranks(run_dir)

    def error(self) -> str:
        """The name of the exception that the cell ends with."""
        while (message := self.client.get_iopub_msg(timeout=END_S))["msg_type"] != "error":
            pass
        return message["content"]["ename"]

    def close(self):
        self.client.stop_channels()
        self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()
        kill(self.agent, *self.ranks)


@pytest.fixture
def notebook(tmp_path):
    started = Notebook(tmp_path)
    try:
        yield started
    finally:
        started.close()


def test_interrupt_and_restart_leave_no_rank_and_a_living_kernel(notebook, tmp_path):
    notebook.come_to_mid_run(tmp_path / "interrupted")
    notebook.manager.interrupt_kernel()
    # What docs/reliability.md promises: a second to leave, then what killing takes. How long the kernel
    # takes to write the traceback after that is its own.
    assert all_gone([notebook.agent, *notebook.ranks], POLITE_S + KILL_S) == []
    assert notebook.error() == "KeyboardInterrupt"
    assert notebook.manager.is_alive()

    notebook.come_to_mid_run(tmp_path / "restarted")
    # Hard, as nbval does it: the polite way gives the kernel time first.
    notebook.manager.restart_kernel(now=True)
    assert all_gone([notebook.agent, *notebook.ranks], GONE_S) == []
    assert notebook.manager.is_alive()
