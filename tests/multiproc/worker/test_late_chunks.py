"""Collectives of mesh ranks that differ in a late chunk, where no exchange compares them: never wrong sums.

The ranks of one host lay each call beside the others'; whoever comes later raises, before the backend.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest
from checkout import SUPPORT
from guarded_stages import ODD_CHUNK
from toy_runs import toy

import ppwork as pp
from ppwork.records.failure import read_records
from ppwork.records.ledger import read_ledger
from ppwork.records.pulse import read_pulse
from ppwork.records.spans import Span
from ppwork.timeline.chunks import emissions

pytestmark = pytest.mark.multiproc

GONE_S, BOUND_S = 10.0, 60.0
"""From the first record to the end of all ranks, and the bound of a wait, which a hang would take."""
CALLED, ENDED = "called all_reduce float32", f"ended chunk {ODD_CHUNK} after"
CASES = {
    "leader longer": f"rank 1 {CALLED}[9, 64] as collective",
    "follower longer": f"rank 2 {CALLED}[9, 64] as collective",
    "follower shorter": f"rank 2 {CALLED}[7, 64] as collective",
    "leader skips": f"rank 1 {ENDED}",
    "follower skips": f"rank 2 {ENDED}",
}


def judged(cause, records, said):
    """Both sides are in the error, with the chunk; and it came before the backend, not out of it."""
    assert cause.error_type == "LocalProtocolError"
    assert said in cause.what
    assert "rank 1 " in cause.what
    assert "rank 2 " in cause.what
    assert cause.where["group"] == "tp_pg"
    assert cause.where["chunk_index"] == ODD_CHUNK
    assert {cause.where["rank"], cause.where["peer"]} == {1, 2}
    assert cause.where["role"] == ("leader", "follower")[cause.rank - 1]
    assert [record for record in records if record.error_type == "RankDied"] == []


def gone(run_dir):
    return all((pulse := read_pulse(run_dir, rank)) is None or pulse.process() is None for rank in range(3))


@pytest.mark.parametrize("case", CASES)
def test_sums_that_differ_past_the_window_are_named_and_nobody_hangs(tmp_path, case):
    """F05 and R5, in a chunk that no exchange compares."""
    options = {"case": case}
    plan = toy(verify=False, timeout_s=BOUND_S, stage1="guarded_stages:OddSums", options=options)
    assert plan.compare_collectives <= ODD_CHUNK
    run = pp.launch(plan, out=tmp_path / "run", check=False)
    ended_ns = time.monotonic_ns()
    records = read_records(run.run_dir, plan.world_size)
    assert ended_ns - min(record.at_ns for record in records) < GONE_S * 1e9
    judged(pp.diagnose(run).cause, records, CASES[case])
    assert gone(run.run_dir)
    left = [entry.chunk_index for entry in run.entries(1) if entry.name == "result.send"]
    # A leader with a call too few may have ended its chunk before anybody could see that.
    assert left in ([0, 1, 2], [0, 1, 2, 3])
    if case != "leader skips":
        assert left == [0, 1, 2]


def started(case, run_dir, compare):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    script = [str(SUPPORT / "odd_loops.py"), case, str(run_dir), str(compare)]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        [*command, *script], timeout=110, check=False, env=environment, capture_output=True, text=True
    )


@pytest.mark.parametrize("case", ["follower shorter", "leader skips", "follower skips"])
def test_in_a_loop_of_ones_own_they_are_named_too(tmp_path, case):
    began_s = time.monotonic()
    assert started(case, tmp_path / "run", 2).returncode == 1
    assert time.monotonic() - began_s < BOUND_S
    judged(pp.diagnose(tmp_path / "run").cause, read_records(tmp_path / "run", 3), CASES[case])
    assert gone(tmp_path / "run")


def test_a_loop_that_turned_it_off_is_told_to_turn_it_on_and_no_rank_is_blamed(tmp_path):
    """What gloo makes of it is a hang; the counts of the flight recorder are said first."""
    assert started("follower skips", tmp_path / "run", 0).returncode == 1
    assert read_ledger(tmp_path / "run", 1) == {}
    found = pp.diagnose(tmp_path / "run")
    assert (found.cause.rank, found.cause.error_type) == (-1, "CollectiveMismatch")
    assert "in it or before, rank 2 left one out, or the other made one more" in found.sentence
    assert "--compare-collectives -1" in found.check_first
    assert "ppwork diagnose RUN" not in found.text
    assert gone(tmp_path / "run")


def test_a_loop_of_ones_own_leaves_a_timeline_and_a_period(tmp_path):
    done = started("follower stays", tmp_path / "run", 2)
    assert done.returncode == 0, done.stderr[-2000:]
    run = pp.open(tmp_path / "run")
    assert run.summary["chunks"] == 6
    for name in ("period_ms", "stage0_ms", "stage1_ms"):
        assert run.summary[name] > 0, name
    assert [*emissions(run.entries_by_rank)] == [*range(6)]
    spans = {
        rank: [entry for entry in run.entries(rank) if isinstance(entry, Span) and entry.lane == "main"]
        for rank in range(3)
    }
    for rank, names in ((0, ("encode", "decode")), (1, ("generate",)), (2, ("generate",))):
        for name in names:
            chunks = [span.chunk_index for span in spans[rank] if span.name == name]
            assert chunks == [*range(6)], (rank, name)
    assert "period" in run.timeline().finding
    calls = read_ledger(tmp_path / "run", 2)
    assert len(calls) == 6 * 4  # three sums and the end of each chunk
    assert calls == read_ledger(tmp_path / "run", 1)
