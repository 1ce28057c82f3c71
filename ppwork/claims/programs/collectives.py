"""Collectives: what a barrier is, what has happened when one returns, what one per step costs."""

# ruff: noqa: S101  isend and irecv return None outside their group: the asserts say that we are inside

from __future__ import annotations

import json
import time

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d  # no public way to the flight recorder

from ppwork.claims.rank import World

UNEVEN_S = (0.04, 0.004)
STEPS = 10


def traced_barrier(world: World) -> None:
    """A barrier that rank 1 comes late to; then the flight recorder says what it was made of."""
    if world.rank == 1:
        time.sleep(0.3)
        world.note(came=time.monotonic())
    dist.barrier()
    world.note(returned=time.monotonic())
    dump = getattr(c10d, f"_dump_{'nccl' if world.backend == 'nccl' else 'fr'}_trace_json")
    entry = json.loads(dump())["entries"][-1]
    world.note(name=entry["profiling_name"], sizes=entry["input_sizes"])


def used_on_another_stream(world: World) -> None:
    """The documentation's example without the edge: all-reduce 1, add 100 on another stream at once."""
    world.note(seen=_reduced_then_added(world, edge=False))


def used_behind_the_edge(world: World) -> None:
    """The documentation's example: the other stream waits for the one that the all-reduce is on."""
    world.note(seen=_reduced_then_added(world, edge=True))


def _reduced_then_added(world: World, *, edge: bool) -> list[float]:
    output = torch.ones(64 << 20, device=world.device)
    dist.all_reduce(output.clone())  # connections
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    torch.cuda.synchronize()
    start = time.monotonic()
    work = dist.all_reduce(output, async_op=True)
    work.wait()
    world.note(returned_s=time.monotonic() - start)
    with torch.cuda.stream(side):
        if edge:
            side.wait_stream(torch.cuda.default_stream())
        output.add_(100.0)
    torch.cuda.synchronize()
    world.note(complete_s=time.monotonic() - start)
    return [output.min().item(), output.max().item()]


def steps_with_a_barrier(world: World) -> None:
    """Steps of 40 and 4 ms in turns, long on one rank when short on the other, and a barrier in each."""
    _steps(world, barrier=True)


def steps_with_messages_only(world: World) -> None:
    """The same steps, held together by nothing but the message from rank 0 to rank 1."""
    _steps(world, barrier=False)


def _steps(world: World, *, barrier: bool) -> None:
    dist.barrier()
    works, start = [], time.monotonic()
    for step in range(STEPS):
        time.sleep(UNEVEN_S[(step + world.rank) % 2])
        if world.rank == 0:
            works.append(dist.isend(torch.full((4,), float(step), device=world.device), 1))
        else:
            dist.recv(torch.zeros(4, device=world.device), 0)
        if barrier:
            dist.barrier()
    world.note(period_ms=1000 * (time.monotonic() - start) / STEPS)
    for work in works:
        assert work is not None
        work.wait()
