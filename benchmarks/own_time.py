"""Rank 0's own time for a chunk: a plain loop of ``isend`` and ``irecv`` beside ``ppwork``, in turns.

Both at depth 3, with one mesh rank, chunks of 64 KB each way, and stages of 20 ms that sleep. Own time is
what a period has beyond ``encode``, ``decode`` and the wait for a result. The plain loop checks nothing,
records nothing and stops at no mistake: it is what torch and gloo cost a thread that has just slept.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
import time
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

import common
import growth
import torch
import torch.distributed as dist

from ppwork import process
from ppwork.plan import Plan
from ppwork.runtime import groups as live
from ppwork.runtime.membership import Membership

CHUNKS, DEPTH, NUMBERS, STAGE_S = 40, 3, 16_384, 0.020
PLAN = Plan(mesh_size=1, backend="gloo", chunks=1)
POINT = growth.Point("depth", DEPTH, "law", mesh=1, chunks=CHUNKS, depth=DEPTH, stage_ms=1000 * STAGE_S)


class Watch:
    """Adds up what is not the loop's own: stages and waits."""

    def __init__(self) -> None:
        self.others_ns = 0

    def run(self, call: Any, *args: Any) -> None:  # noqa: ANN401
        """Call something that is not the loop's own."""
        start_ns = time.monotonic_ns()
        call(*args)
        self.others_ns += time.monotonic_ns() - start_ns


def stage0(down: Any, up: Any) -> float:  # noqa: ANN401
    """Rank 0's loop; return its own milliseconds a chunk, after warm-up."""
    unfinished: deque[Any] = deque()
    watch, marks = Watch(), []
    for k in range(CHUNKS + DEPTH - 1):
        if k < CHUNKS:
            watch.run(time.sleep, STAGE_S / 2)  # encode
            envelope, result = torch.full((NUMBERS,), float(k)), torch.empty(NUMBERS)
            handles = dist.isend(envelope, group=down, group_dst=1), dist.irecv(result, group=up, group_src=1)
            unfinished.append((*handles, envelope, result))
        if len(unfinished) == DEPTH or k >= CHUNKS:
            leaving, coming, envelope, result = unfinished.popleft()
            leaving.wait()
            watch.run(coming.wait)
            watch.run(time.sleep, STAGE_S / 2)  # decode
            marks.append((time.monotonic_ns(), watch.others_ns))
    (first_ns, before_ns), (last_ns, after_ns) = marks[growth.WARM_UP], marks[CHUNKS - DEPTH]
    own_ns = (last_ns - first_ns) - (after_ns - before_ns)
    return own_ns / 1e6 / (CHUNKS - DEPTH - growth.WARM_UP)


def stage1(down: Any, up: Any) -> None:  # noqa: ANN401
    """Rank 1's loop: receive ahead, generate, send back."""
    buffers, leaving = [torch.empty(NUMBERS) for _ in range(2)], deque()
    coming = dist.irecv(buffers[0], group=down, group_src=0)
    for k in range(CHUNKS):
        coming.wait()
        if k + 1 < CHUNKS:
            coming = dist.irecv(buffers[(k + 1) % 2], group=down, group_src=0)
        time.sleep(STAGE_S)  # generate
        result = buffers[k % 2] + 1
        leaving.append((dist.isend(result, group=up, group_dst=0), result))
        if len(leaving) == DEPTH or k + 1 == CHUNKS:
            while leaving:
                leaving.popleft()[0].wait()


def worker(out: Path) -> None:
    """One rank of the plain loop; rank 0 writes its own time down."""
    process.hold_if_asked()
    torch.set_num_threads(1)
    rank = int(os.environ["RANK"])
    groups = live.join(PLAN, Membership(rank, 2, (0, 1), rank))
    if rank == 0:
        out.write_text(json.dumps(stage0(groups["down_pg"], groups["up_pg"])))
    else:
        stage1(groups["down_pg"], groups["up_pg"])
    groups.close()


def main() -> None:
    """Measure in turns, and write the table."""
    asked = common.of_ranks(__doc__, rounds=7).parse_args()
    if asked.worker:
        worker(asked.worker)
        return
    os.chdir(Path(__file__).parent)  # where the stages are
    found: dict[str, list[float]] = {"plain loop": [], "ppwork": []}
    shares = []
    with tempfile.TemporaryDirectory(prefix="ppwork-") as scratch:
        for number in range(asked.rounds):
            own_ms, share = common.measured_quietly(
                lambda _: common.measured_by_ranks(__file__, ranks=2, limit_s=60.0)
            )
            found["plain loop"].append(own_ms)
            shares.append(share)
            folder = Path(scratch, str(number))
            figures, share = common.measured_quietly(partial(growth.measured, POINT, folder))
            found["ppwork"].append(figures["rank0_ms"])
            shares.append(share)
    rows = [[name, statistics.median(own), min(own), max(own)] for name, own in found.items()]
    times = statistics.median(b / a for a, b in zip(*found.values(), strict=True))
    parts = [
        __doc__ or "",
        f"{asked.rounds} rounds; the others took at most {max(shares):.0%} of the machine.",
        common.table(["rank 0's own time, ms a chunk", "median", "least", "most"], rows),
        f"ppwork takes {times:.2f} times the plain loop's, in the median of the rounds.",
    ]
    figures = {"rows": rows, "others": shares}
    sys.stdout.write(
        common.report("own_time", "Rank 0's own time for a chunk", parts, figures, asked.results)
    )


if __name__ == "__main__":
    main()
