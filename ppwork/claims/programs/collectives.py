"""Collectives: what they compute, what a barrier is and costs, what has happened when one returns."""

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
KINDS = ("SUM", "AVG", "MIN", "MAX", "PRODUCT", "BAND", "BOR", "BXOR")
"""Of ``ReduceOp``; the last three are of bits, so of whole numbers."""
POLL_S = 5.0
"""How long a handle is asked whether it is done."""


def every_reduction(world: World) -> None:
    """Rank 0 gives 2 and rank 1 gives 3 to an all-reduce of each kind; ``PREMUL_SUM`` by a factor of 10."""
    for kind in KINDS:
        whole = kind.startswith("B")
        number = torch.tensor([2 + world.rank] if whole else [2.0 + world.rank], device=world.device)
        _noted_sum(world, kind, number, getattr(dist.ReduceOp, kind))
    scaled = dist._make_nccl_premul_sum(10.0)  # type: ignore[attr-defined]  # no public way to one
    _noted_sum(world, "PREMUL_SUM", torch.tensor([2.0 + world.rank], device=world.device), scaled)


def _noted_sum(world: World, kind: str, number: torch.Tensor, operation: object) -> None:
    try:
        dist.all_reduce(number, op=operation)
        world.note(**{kind: number.item()})
    except (RuntimeError, ValueError) as error:
        world.note(**{kind: str(error).splitlines()[0]})


def futures(world: World) -> None:
    """The future of an all-reduce, with a call that it makes when it is done; then that of a message."""
    work = dist.all_reduce(torch.full((1,), world.rank + 1.0, device=world.device), async_op=True)
    assert work is not None
    called = work.get_future().then(lambda future: 10.0 * future.value()[0].item())
    world.note(called_with=called.wait())
    tensor = torch.ones(1, device=world.device)
    message = dist.isend(tensor, 1) if world.rank == 0 else dist.irecv(tensor, 0)
    assert message is not None
    try:
        message.get_future()
        world.note(of_a_message="")
    except RuntimeError as error:
        world.note(of_a_message=str(error).splitlines()[0])
    message.wait()


def polled_all_reduce(world: World) -> None:
    """Rank 1 comes 0.3 s late to an all-reduce whose handle rank 0 asks, and never waits for."""
    if world.rank == 1:
        time.sleep(0.3)
    tensor = torch.full((1,), world.rank + 1.0, device=world.device)
    work = dist.all_reduce(tensor, async_op=True)
    assert work is not None
    world.note(at_once=work.is_completed())
    end = time.monotonic() + POLL_S
    while not work.is_completed() and time.monotonic() < end:
        time.sleep(0.005)
    world.note(later=work.is_completed(), total=tensor.item())
    work.wait()
    dist.barrier()


def uneven_parts(world: World) -> None:
    """``all_to_all_single``: each rank gives rank 0 one number and rank 1 two, in one tensor."""
    mine = torch.tensor([0.0, 1.0, 1.0], device=world.device) + 10 * world.rank
    parts = [1 + world.rank] * world.size
    output = torch.zeros(sum(parts), device=world.device)
    dist.all_to_all_single(output, mine, parts, [1, 2])
    world.note(got=output.tolist())


def functional(world: World) -> None:
    """A functional all-reduce of a transposed tensor: what it returns, and what becomes of its input."""
    from torch.distributed import _functional_collectives as funcol

    given = (torch.arange(6.0, device=world.device) * (world.rank + 1)).reshape(2, 3).t()
    before = given.clone()
    total = funcol.all_reduce(given, "sum", dist.group.WORLD)  # type: ignore[arg-type]
    world.note(kind=type(total).__name__, input_changed=not torch.equal(given, before))
    world.note(total=(total + 0).tolist())


def compiled(world: World) -> None:
    """A step with ``all_reduce`` in its midst, as it is and by ``torch.compile``: in how many graphs?"""
    graphs = []

    def counting(graph: torch.fx.GraphModule, _inputs: object) -> object:
        graphs.append(graph)
        return graph.forward

    def step(x: torch.Tensor) -> torch.Tensor:
        y = 2 * x
        dist.all_reduce(y)
        return y + 1

    given = torch.tensor([world.rank + 1.0], device=world.device)
    world.note(eager=step(given).tolist())
    world.note(compiled=torch.compile(step, backend=counting)(given).tolist(), graphs=len(graphs))


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
