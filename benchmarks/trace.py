"""What recording costs a program of one's own: microseconds that a call of torch.distributed takes longer.

Each recorded function stands in for one that does nothing, so that only the recording is timed: in a loop
(the quickest of 60 rounds), and alone after a copy of 8 MB, which leaves it the caches cold (the median). The
last rows are real calls on one gloo rank, without it. All is processor time of the calling thread: other
processes of the machine stretch it less than time on the wall.

The second table is processor time of rank 0, gloo's threads among it, in programs on two ranks (the quickest
of 20 rounds): not recorded, recorded, and recorded with operators (``--ops``), a job each.

``python benchmarks/trace.py`` writes ``trace.md`` and exits with 1 past the goal.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common
import msgspec
import torch
import torch.distributed as dist

from ppwork.records.files import write_whole
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


WAYS = ("off", "on", "ops")
"""Not recorded, recorded, and with operators."""
STEPS = 20


def work_on_a_rank(out: Path, way: str, folder: Path) -> None:
    """Be one rank: time each program, and let rank 0 write the times."""
    if way != "off":
        recorder = CallRecorder(folder, int(os.environ["RANK"]), 2, ops=way == "ops")
        recorder.install()
    dist.init_process_group("gloo")
    rank, x = dist.get_rank(), torch.ones(1000)

    def messages() -> None:
        for _ in range(100):
            if rank == 0:
                dist.send(x, 1)
            else:
                dist.recv(x, 0)

    def handles() -> None:
        for _ in range(100):
            (dist.isend(x, 1) if rank == 0 else dist.irecv(x, 0)).wait()

    def sums() -> None:
        for _ in range(100):
            dist.all_reduce(x)

    layers = [torch.nn.Linear(256, 256) for _ in range(8)]
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Sequential(*layers))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)

    def steps() -> None:
        for _ in range(5):
            optimizer.zero_grad()
            model(torch.ones(32, 256)).sum().backward()
            optimizer.step()

    programs = {
        "100 x send to recv, 4 kB": messages,
        "100 x isend to irecv, each with its wait": handles,
        "100 x all_reduce, 4 kB": sums,
        "5 steps of DDP, 8 layers of 256": steps,
    }
    found = {}
    for name, program in programs.items():
        times = []
        for _ in range(STEPS):
            dist.barrier()
            start_ns = time.process_time_ns()
            program()
            times.append((time.process_time_ns() - start_ns) / 1e6)
        found[name] = min(times)
    if rank == 0:
        write_whole(out, msgspec.json.encode(found))
    dist.destroy_process_group()


def programs(folder: Path) -> list[tuple[str, float, float, float]]:
    """Return the milliseconds of each program, off, on, and with operators."""
    ways = [common.measured_by_ranks(__file__, way, str(folder), ranks=2, limit_s=180) for way in WAYS]
    return [(name, *(way[name] for way in ways)) for name in ways[0]]


def main() -> int:
    """Measure and write the tables."""
    if sys.argv[1:2] == ["--worker"]:
        out, way, folder = sys.argv[2:]
        work_on_a_rank(Path(out), way, Path(folder))
        return 0
    parser = common.described(__doc__)
    parser.add_argument("--results", type=common.results_folder, default=common.RESULTS)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ppwork-") as scratch, common.Others() as others:
        rows = measured(Path(scratch))
        whole = programs(Path(scratch, "programs"))
    parts = [
        f"Others took {others.share:.0%} of the machine. The goal is under {GOAL_US:g} us a call, in a loop.",
        common.table(["call", "us, in a loop", "us, caches cold"], rows),
        common.table(
            ["program on two ranks", "ms, not recorded", "ms, recorded", "ms, with operators"], whole
        ),
    ]
    data = {"us": rows, "programs_ms": whole}
    text = common.report("trace", "Cost of recording a program's calls", parts, data, asked.results)
    sys.stdout.write(text)
    return 0 if all(loop < GOAL_US for _, loop, cold in rows if cold is not None) else 1


if __name__ == "__main__":
    sys.exit(main())
