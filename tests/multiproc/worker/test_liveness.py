"""A rank that stops making progress is ended within its bound and named; one that is only slow is not."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time

import pytest
from checkout import SUPPORT
from launched_jobs import all_gone
from toy_runs import expected, toy
from waiting import END_S, wait_for

import ppwork as pp
from ppwork.process import FAILED, SECONDARY, STUCK, UNWRITABLE
from ppwork.records.clocks import CLOCK
from ppwork.records.failure import read_records
from ppwork.records.pulse import PulseState, read_pulse
from ppwork.records.run import log_file
from ppwork.records.spans import read_entries
from ppwork.worker.watchdog import TICK_S

pytestmark = pytest.mark.multiproc

STALL_S, FREEZE_S = 2.0, 1.0
MARGIN_S = 2.0
"""So much later docs/reliability.md promises the report at the latest."""
CHUNK = 2
"""At which the stages below misbehave."""


def misbehaving(how: str, stall_s: float = STALL_S) -> pp.Plan:
    bounds = {"stall_s": stall_s, "freeze_s": FREEZE_S}
    return toy(stage1="toy_hangs:Hangs", verify=False, options={"how": how, "group_rank": 1}, **bounds)


def left_s(run_dir, rank: int) -> float:
    """When a rank left its last words, or else its log, seconds since the epoch."""
    record = run_dir / f"failure-rank{rank}.json"
    return (record if record.exists() else log_file(run_dir, rank)).stat().st_mtime


def line_of(text: str) -> str:
    path = SUPPORT / "toy_hangs.py"
    number = next(n for n, line in enumerate(path.read_text().splitlines(), 1) if text in line)
    return f"{path}:{number}"


def began_s(run_dir) -> float:
    """When the stage began to misbehave, seconds since the epoch: it leaves a file."""
    return (run_dir.parent / "began").stat().st_mtime


@pytest.fixture
def run_dir(tmp_path, monkeypatch):
    monkeypatch.setenv("TOY_BEGAN", str(tmp_path / "began"))
    return tmp_path / "run"


def test_a_loop_without_an_end_is_ended_and_told_with_the_users_line(run_dir):
    """F14. Its peer, whose sum waits for it in the same step for as long, is not blamed."""
    run = pp.launch(misbehaving("loop"), out=run_dir, check=False)
    records = {record.rank: record for record in read_records(run_dir, 3)}
    stuck = records[2]
    assert (stuck.error_type, stuck.symptom) == ("StuckError", False)
    assert stuck.where == {
        "rank": 2,
        "role": "follower",
        "call_id": CHUNK,
        "chunk_index": CHUNK,
        "cache_epoch": 0,
    }
    assert "The stage's step did not return within 2 s" in stuck.what
    assert stuck.source == line_of("while True")
    assert "toy_hangs.py" in stuck.traceback
    assert stuck.last_instants["main"]["name"] == CLOCK  # a follower sends nothing: the last was at start-up
    # Counted from the entry of the step, which comes before the stage's first line.
    assert STALL_S - TICK_S < left_s(run_dir, 2) - began_s(run_dir) < STALL_S + MARGIN_S
    pulse = read_pulse(run_dir, 2)
    assert (pulse.state, pulse.exit_code, pulse.doing) == (PulseState.LEFT, STUCK, "generate")
    log = log_file(run_dir, 2).read_text()
    assert "slow: generate" in log
    assert re.search(r"Thread 0x\w+ .*\(most recent call first\)", log)
    assert all(record.symptom for rank, record in records.items() if rank != 2)
    assert run.failure.where["rank"] == 2
    assert "exitcode  : 72" in (run_dir / "torchrun.log").read_text()


def test_code_that_keeps_the_interpreter_is_ended_with_a_stack_in_its_log(run_dir):
    """F14 where no thread of the rank can run: only a timer in C can end it."""
    run = pp.launch(misbehaving("keep_the_lock"), out=run_dir, check=False)
    log = log_file(run_dir, 2).read_text()
    assert "Timeout (0:00:03)!" in log
    assert 'toy_hangs.py", line' in log
    assert STALL_S - TICK_S < left_s(run_dir, 2) - began_s(run_dir) < STALL_S + 1.0 + MARGIN_S
    assert run.failure.where["rank"] == 2
    assert f"exitcode  : {FAILED}" in (run_dir / "torchrun.log").read_text()


def test_a_stage_that_is_only_slow_gets_one_warning_with_a_stack_and_the_run_succeeds(run_dir):
    run = pp.launch(misbehaving("slow", stall_s=6.0), out=run_dir)
    assert run.summary["figures"]["outputs"] == expected(6)
    log = log_file(run_dir, 2).read_text()
    assert log.count("slow: generate") == 1
    assert "toy_hangs.py" in log
    assert "slow" not in log_file(run_dir, 1).read_text()  # it waited, in the same step
    assert [read_pulse(run_dir, rank).exit_code for rank in range(3)] == [0, 0, 0]


class Live:
    """A run in the background whose ranks can be stopped; found by their pulses."""

    def __init__(self, plan: pp.Plan, run_dir):
        self.run = None
        self._thread = threading.Thread(target=self._launch, args=(plan, run_dir))
        self._thread.start()
        wait_for(lambda: any(e.name == "emit" for e in read_entries(run_dir, 0)), END_S)
        self.ranks = [read_pulse(run_dir, rank).process() for rank in range(plan.world_size)]

    def _launch(self, plan, run_dir):
        self.run = pp.launch(plan, out=run_dir, check=False)

    def wait(self) -> pp.Run:
        self._thread.join(END_S)
        for rank in self.ranks:
            if rank.is_running():
                rank.kill()
        self._thread.join()
        return self.run


def test_a_stopped_rank_is_named_by_its_peers_and_a_pause_of_all_of_them_by_nobody(run_dir):
    """F14 by SIGSTOP; and its twin, everybody stopped and gone on, after which nobody may be judged."""
    plan = toy(
        verify=False, chunks=10_000, freeze_s=FREEZE_S, stage1="toy_stages:Slow", options={"step_s": 0.05}
    )
    live = Live(plan, run_dir)
    for rank in live.ranks:
        rank.suspend()
    time.sleep(2 * FREEZE_S)  # this is what is tested: all of them stand still for longer than the bound
    for rank in reversed(live.ranks):
        rank.resume()
    beats = [read_pulse(run_dir, rank).beat for rank in range(3)]
    go_on = [emits(run_dir) + 30, *(beat + 2 * FREEZE_S / 0.25 for beat in beats)]
    wait_for(lambda: emits(run_dir) >= go_on[0] and read_pulse(run_dir, 0).beat >= go_on[1], END_S)
    assert not read_records(run_dir, 3)
    stopped_s = time.time()
    live.ranks[2].suspend()
    run = live.wait()
    records = {record.rank: record for record in read_records(run_dir, 3)}
    named = [record for record in records.values() if record.error_type == "PeerFrozenError"]
    assert named
    for record in named:
        assert record.symptom
        assert record.where["peer"] == 2
        assert record.where["role"] in ("stage0", "leader")
        assert f"process {live.ranks[2].pid}, was stopped (SIGSTOP)" in record.what
        # Counted from the last beat, which came up to a tick before the stop.
        assert FREEZE_S - 2 * TICK_S <= left_s(run_dir, record.rank) - stopped_s < FREEZE_S + MARGIN_S
    # Two may name it, and torchrun may end the later one (SIGTERM) between its record and its leaving.
    codes = [read_pulse(run_dir, record.rank).exit_code for record in named]
    assert SECONDARY in codes
    assert set(codes) <= {SECONDARY, None}
    assert 2 not in records
    assert all_gone(live.ranks, 0.0) == []
    assert run.failure is not None


def emits(run_dir) -> int:
    return sum(entry.name == "emit" for entry in read_entries(run_dir, 0))


def worker_alone(run_dir) -> subprocess.CompletedProcess[str]:
    """One rank, which never comes so far as to import torch."""
    command = [sys.executable, "-m", "ppwork", "worker", str(run_dir)]
    environment = {**os.environ, "RANK": "1"}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=END_S, check=False
    )


def test_a_rank_that_cannot_write_its_log_says_so_and_leaves_with_a_code_of_its_own(tmp_path):
    """F20: before torch is imported, and so before any peer waits for it."""
    done = worker_alone(tmp_path / "nowhere")
    assert done.returncode == UNWRITABLE
    assert "rank 1 cannot write into the run folder" in done.stderr


def test_a_rank_that_fails_leaves_record_and_code_and_its_pulse_says_the_same(tmp_path):
    assert worker_alone(tmp_path).returncode == FAILED
    (record,) = read_records(tmp_path, 2)
    assert (record.rank, record.error_type) == (1, "PlanError")
    pulse = read_pulse(tmp_path, 1)
    assert (pulse.state, pulse.exit_code) == (PulseState.LEFT, FAILED)
