"""What a pause costs one raw message: ``dist.send`` of 16 MB, right after the last one or after some sleep.

A pipeline's hops come once a period, with sleeping cores and other buffers in between; a loop that sends the
same buffer again and again measures something else. Two ranks, gloo; the receiver already waits.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from pathlib import Path

import common
import torch
import torch.distributed as dist

from ppwork import process
from ppwork.plan import Plan
from ppwork.runtime import groups as live
from ppwork.runtime.membership import Membership

SIZE = 16 << 20
CASES = ((1, 0.0), (4, 0.0), (1, 20.0), (4, 20.0), (1, 50.0), (4, 50.0))
"""Buffers that take turns, and milliseconds of sleep between two messages."""
CALLS, WARM_UP = 30, 5
PLAN = Plan(mesh_size=1, backend="gloo", chunks=1)


def worker(out: Path) -> None:
    """One rank: rank 0 sends and writes down the one-way times."""
    process.hold_if_asked()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    groups = live.join(PLAN, Membership(rank, 2, (0, 1), rank))
    link, token = groups["down_pg"], torch.zeros(1)
    found = []
    for count, pause_ms in CASES:
        buffers = [torch.zeros(SIZE, dtype=torch.uint8) for _ in range(count)]
        stamps = []
        for call in range(CALLS):
            if rank == 1:
                dist.send(token, group=groups["up_pg"], group_dst=0)
                dist.recv(buffers[call % count], group=link, group_src=0)
                stamps.append(time.monotonic_ns())
            else:
                dist.recv(token, group=groups["up_pg"], group_src=1)
                time.sleep(max(pause_ms, 0.5) / 1000)  # what is measured; at least for the receiver to sleep
                stamps.append(time.monotonic_ns())
                dist.send(buffers[call % count], group=link, group_dst=1)
        mine = torch.tensor(stamps)
        if rank == 1:
            dist.send(mine, group=groups["up_pg"], group_dst=0)
        else:
            ends = torch.zeros_like(mine)
            dist.recv(ends, group=groups["up_pg"], group_src=1)
            times = [ns / 1e6 for ns in (ends - mine).tolist()][WARM_UP:]
            found.append({"buffers": count, "pause_ms": pause_ms, "ms": statistics.median(times)})
    if rank == 0:
        out.write_text(json.dumps(found))
    groups.close()


def main() -> int:
    """Measure and write the table."""
    options = common.described(__doc__)
    options.add_argument("--results", type=common.results_folder, default=common.RESULTS)
    options.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    given = options.parse_args()
    if given.worker:
        worker(given.worker)
        return 0
    with common.Others() as others:
        rows = common.measured_by_ranks(__file__, ranks=2, limit_s=120.0)
    cells = [(row["buffers"], f"{row['pause_ms']:g}", row["ms"]) for row in rows]
    parts = [
        __doc__ or "",
        f"Other processes took {others.share:.0%} of the machine.",
        common.table(("buffers", "ms of sleep before", "ms one way"), cells),
    ]
    sys.stdout.write(
        common.report("pause", "What a pause costs one raw message", parts, {"rows": rows}, given.results)
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
