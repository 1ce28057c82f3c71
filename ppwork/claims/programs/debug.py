"""Tools that say what went wrong, and what they cost."""

from __future__ import annotations

import random
import statistics
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ppwork.claims.rank import World

BOUND = timedelta(seconds=1)


def one_does_not_come(world: World) -> None:
    """Ranks 0 and 1 enter a monitored barrier of three, in a gloo group; rank 2 is later than its 1 s."""
    group = dist.new_group(backend="gloo")
    dist.barrier()
    if world.rank == 2:
        time.sleep(1.6)
        return
    try:
        dist.monitored_barrier(group, timeout=BOUND)
    except RuntimeError as error:
        world.note(error=str(error))


def some_do_not_come(world: World) -> None:
    """Rank 0 draws two of ranks 1, 2, 3 who will be missing; these wait in the store for the end instead."""
    group = dist.new_group(backend="gloo")
    store = world.store("missing")
    if world.rank == 0:
        missing = sorted(random.sample([1, 2, 3], 2))
        world.note(missing=missing)
        store.set("missing", ",".join(map(str, missing)))
    missing_too = str(world.rank) in store.get("missing").decode().split(",")
    dist.barrier()
    if missing_too:
        store.get("over")
        return
    try:
        dist.monitored_barrier(group, timeout=BOUND, wait_all_ranks=True)
    except RuntimeError as error:
        world.note(error=str(error))
    if world.rank == 0:
        store.set("over", "1")


def barrier_does_not_say(world: World) -> None:
    """Rank 2 does not come to a ``barrier`` in a group with a timeout of 1 s."""
    group = dist.new_group(backend="gloo", timeout=BOUND)
    dist.barrier()
    if world.rank == 2:
        time.sleep(1.6)
        return
    try:
        dist.barrier(group)
    except RuntimeError as error:
        world.note(error=str(error))


def monitored_elsewhere(world: World) -> None:
    """A monitored barrier of a group that is not of gloo."""
    from torch.testing._internal.distributed import fake_pg

    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=2)
    try:
        dist.monitored_barrier()
        world.note(error="")
    except (ValueError, RuntimeError) as error:  # which of them depends on the version
        world.note(error=str(error))


def shapes_differ(world: World) -> None:
    """Rank 0 gives 3 numbers to an all-reduce, rank 1 gives 5."""
    tensor = torch.ones(3 if world.rank == 0 else 5, device=world.device)
    try:
        dist.all_reduce(tensor)
        tensor.sum().item()
        world.note(reduced=tensor.tolist())
    except RuntimeError as error:
        world.note(error=str(error))


def shapes_differ_in_a_mesh(world: World) -> None:
    """DETAIL by call: ranks 1 and 2, in a group of their own, all-gather tensors of 2x7 and 7x2."""
    dist.set_debug_level(dist.DebugLevel.DETAIL)  # type: ignore[attr-defined]
    mesh = dist.new_group([1, 2])
    world.meet("created")
    if world.rank == 0:
        return
    tensor = torch.ones((2, 7) if world.rank == 1 else (7, 2), device=world.device)
    try:
        dist.all_gather([torch.empty_like(tensor) for _ in range(2)], tensor, group=mesh)
        world.note(gathered=True)
    except RuntimeError as error:
        world.note(error=str(error))


def broadcasts(world: World) -> None:
    """200 broadcasts of 1 KB in a plain group and in one with DETAIL, in turns."""
    plain = dist.new_group()
    dist.set_debug_level(dist.DebugLevel.DETAIL)  # type: ignore[attr-defined]
    checked = dist.new_group()
    tensor = torch.ones(256, device=world.device)
    took: dict[str, list[float]] = {"plain": [], "detail": []}
    for _ in range(100):
        for name, group in (("plain", plain), ("detail", checked)):
            start = time.perf_counter()
            dist.broadcast(tensor, 0, group=group)
            tensor[0].item()
            took[name].append(time.perf_counter() - start)
    world.note(**{f"{name}_ms": 1000 * statistics.median(times[10:]) for name, times in took.items()})
