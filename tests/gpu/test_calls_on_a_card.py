"""Recorded calls on real streams: the cases of ``tests/unit/worker/test_device_calls.py`` with NCCL.

Run with `pytest -m gpu tests/gpu`. Two ranks share the card (``scripts/gpu/own_streams.py``), so orders are
compared and no times.
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import ppwork as pp
from ppwork.records.calls import read_calls
from ppwork.timeline.meetings import Meetings

pytestmark = pytest.mark.gpu

PROGRAM = Path(__file__).parents[2] / "scripts" / "gpu" / "own_streams.py"
HARD_LIMIT_S = 90.0
KERNEL_NS = 5_000_000
"""At least so long do the program's kernels run."""


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    out = tmp_path_factory.mktemp("streams") / "run"
    return pp.launch_script(PROGRAM, nproc=2, out=out, limit_s=HARD_LIMIT_S)


@pytest.fixture(scope="module")
def calls(run):
    """Each rank's calls, by the function of the program that made them."""
    nodes = [node for node in ast.parse(PROGRAM.read_text()).body if isinstance(node, ast.FunctionDef)]

    def function_of(call):
        line = int(call.line.rpartition(":")[2])
        return next(node.name for node in nodes if node.lineno <= line <= (node.end_lineno or 0))

    ranks = read_calls(run.run_dir)
    return [{function_of(call): call for call in of_rank.calls} for of_rank in ranks.values()]


@pytest.mark.timeout(HARD_LIMIT_S + 60)
def test_the_host_comes_back_before_the_device_begins(calls):
    for of_rank in calls:
        call = of_rank["behind_a_kernel"]
        assert call.device.stream == "cuda"
        assert call.end_ns < call.device.start_ns < call.device.end_ns
        assert call.device.start_ns - call.start_ns > KERNEL_NS


def test_a_stream_of_the_programs_own_has_its_name(calls):
    assert {of_rank["on_a_stream_of_its_own"].device.stream for of_rank in calls} == {"stream 1"}


def test_a_call_with_a_handle_ends_where_the_handle_is_waited_for(run, calls):
    met = Meetings(read_calls(run.run_dir))
    waits = {(loan.call.rank, loan.call.begun.number): loan.wait for loan in met.loans}
    for rank, of_rank in enumerate(calls):
        handle = next(call for call in met.ranks[rank].calls if call.lent)
        assert of_rank["with_a_handle"] == waits[rank, handle.begun.number]
        assert handle.device.end_ns - handle.device.start_ns > KERNEL_NS  # of the kernel before the wait


def test_a_captured_graph_is_right_and_has_no_time(run, calls):
    assert run.exit_code == 0
    assert all(of_rank["in_a_graph"].device is None for of_rank in calls)


def test_a_program_ends_before_its_device_does(run):
    assert all(of_rank.left is not None for of_rank in read_calls(run.run_dir).values())
    assert "before its device had" in pp.pictures.program(run).finding
