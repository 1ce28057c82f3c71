"""Cases of the fault catalogue on real ranks; the verdict holds deadline, rank, error, `where`, processes.

What a verdict asks for is data (``ppwork.faults.catalogue``), and that it can fail is in
``tests/unit/faults/test_faults.py``. Cases that other files beside this one inject by themselves are not
repeated here.
"""

from __future__ import annotations

import importlib
import sys

import psutil
import pytest
from checkout import BENCHMARKS
from toy_runs import toy
from waiting import wait_for

import ppwork as pp
from ppwork.faults.catalogue import small_plan, with_fault
from ppwork.faults.family import ProcessFamily
from ppwork.faults.report import CAUGHT
from ppwork.faults.runs import run_case

pytestmark = pytest.mark.multiproc

NAMES = [
    "F01/object",
    "F02/quantised",
    "F03/receiver",
    "F06/truncated",
    "F06/oversized",
    "F07/leader",
    "F08/default-group",
    "F08/wrong-group",
    "F09/flush",
    "F10/no-frames",
    "F13/stage0-idle",
    "F13/leader-mid-send",
    "F13/follower-mid-broadcast",
    "F16/skipped",
]


@pytest.mark.parametrize("name", NAMES)
def test_a_fault_is_caught_by_the_right_rank_within_its_bound_and_leaves_nothing(tmp_path, name):
    report = run_case(name, keep=tmp_path)
    assert report.verdict == CAUGHT, (report.reasons, report.what)


def test_a_plan_of_one_s_own_stages_carries_a_fault_and_its_failure_says_the_cause(tmp_path):
    failure = pp.launch(with_fault(toy(verify=False), "F07"), out=tmp_path / "run", check=False).failure
    assert failure.what.startswith("Rank 1 (leader) failed first: RuntimeError")
    assert pp.Plan.load(tmp_path / "run").fault == "F07/leader"


def test_an_unknown_fault_is_refused_before_anything_is_made(tmp_path):
    with pytest.raises(pp.PlanError, match="no fault 'F99'"):
        pp.launch(with_fault(small_plan(), "F99"), out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_process_that_outlives_its_run_is_found_by_its_folder_and_ended(tmp_path):
    """The part of a verdict that says "left"; without the folder in its arguments, a process is not ours."""
    sleeper = ["-c", "import time; time.sleep(60)"]
    with (
        ProcessFamily(tmp_path / "run") as family,
        psutil.Popen([sys.executable, *sleeper, str(tmp_path / "run")]) as ours,
        psutil.Popen([sys.executable, *sleeper, str(tmp_path / "run-2")]) as other,
    ):
        wait_for(family.alive)
        assert family.gone_ns is None
        left = family.end()
        still_there = other.is_running()
        other.kill()
    assert [one.pid for one in left] == [ours.pid]
    assert still_there
    assert not ours.is_running()
    assert family.end() == ()
    assert family.gone_ns is not None


def test_busy_processes_end_with_the_block(monkeypatch):
    monkeypatch.syspath_prepend(BENCHMARKS)
    common = importlib.import_module("common")
    with common.busy(2) as pids:
        processes = [psutil.Process(pid) for pid in pids]
        assert all(process.is_running() for process in processes)
    assert not any(process.is_running() for process in processes)
