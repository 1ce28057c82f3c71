"""Clocks of hosts that differ, with real ranks: other hosts are made by giving ranks another clock."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from commands import ppwork
from toy_runs import toy
from waiting import END_S

from ppwork.plan import Plan
from ppwork.records.clocks import CLOCK
from ppwork.records.spans import Instant, read_entries
from ppwork.timeline.chunks import aligned, emissions, spans_by_chunk

pytestmark = pytest.mark.multiproc

RANK = """
import json, os, sys, time
from ppwork.runtime import groups as live
from ppwork.runtime.membership import Membership
from ppwork.worker.clock_exchange import estimate_offset
from ppwork.records.clocks import Clock
from ppwork.plan import Plan

plan, ahead_ns, out = Plan.from_json(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
read = 0

def now_ns():
    global read
    read += 1
    return time.monotonic_ns() + ahead_ns[rank]

groups = live.join(plan, Membership(rank, world, tuple(range(world)), rank))
found = estimate_offset(groups, Clock("", now_ns), [f"host {ahead}" for ahead in ahead_ns])
live.gather(groups.store, "told", b"", rank, world)
groups.close()
with open(f"{out}/{rank}", "w") as file:
    json.dump([found.offset_ns, found.error_ns, read], file)
"""
SECOND = 1_000_000_000


def test_offsets_of_other_hosts_are_found_within_their_bound_and_shared_by_their_ranks(tmp_path, start_ranks):
    """Rank 2 is on rank 0's host, ranks 1 and 4 are together 5 s ahead, rank 3 is 3 s behind."""
    ahead = [0, 5 * SECOND, 0, -3 * SECOND, 5 * SECOND]
    plan = toy(mesh_size=4).to_json().decode()
    command = ["-c", RANK, plan, json.dumps(ahead), str(tmp_path)]
    assert start_ranks([command] * 5).wait() == [0] * 5
    found = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(5)]
    for rank, (offset_ns, error_ns, _) in enumerate(found):
        assert abs(offset_ns - ahead[rank]) <= error_ns < SECOND, rank
    assert found[0][:2] == found[2][:2] == [0, 0]
    assert found[1][:2] == found[4][:2]
    # Nothing is measured on rank 2's clock, and each other clock is asked on one rank of its host.
    assert [reads for _, _, reads in found] == [64, 16, 0, 16, 0]


AHEAD_S = 5000
IN_A_TIME_NAMESPACE = ["unshare", "-r", "-T", "--monotonic", str(AHEAD_S), "--fork", "--kill-child"]
START_ELSEWHERE = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"


def can_have_another_clock() -> bool:
    try:
        return (
            subprocess.run([*IN_A_TIME_NAMESPACE, "true"], check=False, capture_output=True).returncode == 0
        )
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not can_have_another_clock(), reason="this kernel or user may not make time namespaces")
def test_timeline_of_a_mesh_on_another_host_is_on_one_clock(tmp_path, start_ranks):
    """The kernel itself gives the mesh a clock that is ahead by 5000 s."""
    plan = toy(verify=False, timeout_s=2 * END_S)  # two ranks import torch while the first waits for them
    (tmp_path / Plan.FILE_NAME).write_bytes(plan.to_json())
    here = ["-m", "ppwork", "worker", str(tmp_path)]
    there = ["-c", START_ELSEWHERE, *IN_A_TIME_NAMESPACE, sys.executable, *here]
    assert start_ranks([here, there, there]).wait(2 * END_S) == [0, 0, 0]
    recorded = {rank: read_entries(tmp_path, rank) for rank in range(3)}
    error_ns = max(clock_said(recorded[rank])["error_ns"] for rank in (1, 2))
    for rank in (1, 2):
        assert abs(clock_said(recorded[rank])["offset_ns"] - AHEAD_S * SECOND) <= error_ns < SECOND
    chunks, emits = spans_by_chunk(aligned(recorded)), emissions(recorded)
    assert sorted(chunks) == list(range(plan.chunks))
    for k, spans in chunks.items():
        begin, end = spans[0, "encode"][0].start_ns - error_ns, emits[k] + error_ns
        assert begin < spans[1, "generate"][0].start_ns < spans[1, "generate"][0].end_ns < end
        assert begin < spans[2, "generate"][0].start_ns
    done = ppwork("timeline", tmp_path)
    assert done.returncode == 0, done.stderr
    trace = json.loads((tmp_path / "trace.json").read_bytes())
    assert max(event.get("ts", 0.0) for event in trace["traceEvents"]) < 60e6, "all in one minute, in us"


def clock_said(entries) -> dict[str, float]:
    (clock,) = [entry for entry in entries if isinstance(entry, Instant) and entry.name == CLOCK]
    return clock.figures
