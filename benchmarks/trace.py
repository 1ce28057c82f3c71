"""What recording costs a program of one's own: microseconds that a call of torch.distributed takes longer.

Each recorded function stands in for one that does nothing, so that only the recording is timed: in a loop
(the quickest of 60 rounds), and alone after a copy of 8 MB, which leaves it the caches cold (the median). The
last rows are real calls on one gloo rank, without it. All is processor time of the calling thread: other
processes of the machine stretch it less than time on the wall.

``python benchmarks/trace.py`` writes ``trace.md`` and exits with 1 past the goal.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common
import torch
import torch.distributed as dist

from ppwork.worker.trace import CallRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

GOAL_US = 10.0
ROUNDS, CALLS = 60, 200


def loop_us(call: Callable[[], Any]) -> float:
    """Return the processor time of a call in a loop, in microseconds, of the quickest round."""
    times = []
    for _ in range(ROUNDS):
        start_ns = time.thread_time_ns()
        for _ in range(CALLS):
            call()
        times.append((time.thread_time_ns() - start_ns) / 1e3 / CALLS)
    return min(times)


def cold_us(call: Callable[[], Any]) -> float:
    """Return the median processor time of a call that finds cold caches, in microseconds."""
    other, times = bytearray(8 << 20), []
    for _ in range(CALLS):
        bytes(other)
        start_ns = time.thread_time_ns()
        call()
        times.append((time.thread_time_ns() - start_ns) / 1e3)
    return statistics.median(times)


def measured(folder: Path) -> list[tuple[str, float, float | None]]:
    """Return what is timed, in a loop and with cold caches, in microseconds."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    x = torch.ones(1000)
    real = {"all_reduce": loop_us(lambda: dist.all_reduce(x)), "barrier": loop_us(dist.barrier)}
    recorder = CallRecorder(folder, 0, 1)
    recorder.install()

    def send(tensor: object, dst: int | None = None, group: object = None, tag: int = 0) -> None:
        pass

    def all_reduce(tensor: object, op: object = dist.ReduceOp.SUM, group: object = None) -> None:
        pass

    def barrier(group: object = None) -> None:
        pass

    def wait(work: object) -> None:
        pass

    recorded = {f.__name__: recorder._wrapped(f, f.__name__) for f in (send, all_reduce, barrier)}
    recorded["wait"] = recorder._wait(wait)
    calls: dict[str, Callable[[], Any]] = {
        "send": lambda: recorded["send"](x, 1),
        "all_reduce": lambda: recorded["all_reduce"](x),
        "barrier": recorded["barrier"],
        "wait": lambda: recorded["wait"](x),
    }
    rows = [(name, loop_us(call), cold_us(call)) for name, call in calls.items()]
    dist.destroy_process_group()
    return [*rows, *((f"{name} itself, one rank", us, None) for name, us in real.items())]


def main() -> int:
    """Measure and write the table."""
    parser = common.described(__doc__)
    parser.add_argument("--results", type=common.results_folder, default=common.RESULTS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ppwork-") as scratch, common.Others() as others:
        rows = measured(Path(scratch))
    parts = [
        f"Others took {others.share:.0%} of the machine. The goal is under {GOAL_US:g} us a call, in a loop.",
        common.table(["call", "us, in a loop", "us, caches cold"], rows),
    ]
    text = common.report("trace", "Cost of recording a program's calls", parts, {"us": rows}, asked.results)
    sys.stdout.write(text)
    return 0 if all(loop < GOAL_US for _, loop, cold in rows if cold is not None) else 1


if __name__ == "__main__":
    sys.exit(main())
