"""How ranks find each other: the ways to initialise, and what happens when one is not there."""

from __future__ import annotations

import os
import shutil
import socket
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import psutil
import torch
import torch.distributed as dist

from ppwork.claims.rank import World

LATE_S = 0.5
TRIES = 8
"""Which rank connects to which is a matter of port numbers: a stale address is met every other time."""
BOUND = timedelta(seconds=1)


def shared_port(world: World) -> int:
    """Rank 0 asks the kernel for a free port and tells it to the others."""
    store = world.store("port")
    if world.rank == 0:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            store.set("port", str(probe.getsockname()[1]))
    return int(store.get("port"))


def _start(world: World, **how: Any) -> None:  # noqa: ANN401  as ``init_process_group``'s
    dist.init_process_group(world.backend, timeout=timedelta(seconds=5), **how)
    total = torch.full((1,), world.rank + 1.0, device=world.device)
    dist.all_reduce(total)
    world.note(total=total.item())


def by_tcp(world: World) -> None:
    """The address of rank 0 in the call."""
    url = f"tcp://127.0.0.1:{shared_port(world)}"
    _start(world, init_method=url, rank=world.rank, world_size=world.size)


def by_file(world: World) -> None:
    """A file that all ranks see, and that is not there yet."""
    _start(world, init_method=f"file://{world.folder}/meet", rank=world.rank, world_size=world.size)


def by_environment(world: World) -> None:
    """The address of rank 0 in the environment, where RANK and WORLD_SIZE are too."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(shared_port(world)))
    _start(world)


def by_a_file_of_an_earlier_job(world: World) -> None:
    """The file is as a job left it that was killed at work: a copy of an earlier group's."""
    _by_file_again(world, "left", tries=TRIES)


def by_a_new_file_each_time(world: World) -> None:
    """Each time another file, which is not there yet."""
    _by_file_again(world, "new", tries=3)


def _by_file_again(world: World, name: str, tries: int) -> None:
    url = f"file://{world.folder}/"
    dist.init_process_group(world.backend, init_method=f"{url}meet", rank=world.rank, world_size=world.size)
    dist.barrier()
    for number in range(tries if world.rank == 1 else 0):
        shutil.copy(world.folder / "meet", world.folder / f"left{number}")
    dist.barrier()
    dist.destroy_process_group()
    again(world, tries, lambda number: {"store": None, "init_method": f"{url}{name}{number}"})


def again(world: World, tries: int, how: Callable[[int], dict[str, Any]]) -> None:
    """Make the default group again and again until it fails; rank 1 begins before rank 0."""
    turn = world.store("turn")
    for number in range(tries):
        if world.rank == 0:
            turn.get(f"begun{number}")
            time.sleep(0.15)
            if turn.check(["failed"]):
                return
        turn.set(f"begun{number}", "1")
        try:
            world.init(timeout=BOUND, **how(number))
            dist.barrier()
        except RuntimeError as error:
            turn.set("failed", "1")
            world.note(error=str(error).splitlines()[0])
            return
        world.note(worked=number + 1)
        dist.destroy_process_group()


def one_comes_late(world: World) -> None:
    """Rank 1 comes to ``init_process_group`` late; rank 0 looks at the clock before and after it."""
    if world.rank == 1:
        time.sleep(LATE_S)
        world.note(came=time.monotonic())
    world.init()
    world.note(returned=time.monotonic())
    world.meet("connected")  # who left now could break the other's connecting


def one_never_comes(world: World) -> None:
    """Rank 1 does not come at all, and the bound is 1 s."""
    url = f"tcp://127.0.0.1:{shared_port(world)}"
    if world.rank == 1:
        return
    start = time.monotonic()
    try:
        dist.init_process_group(world.backend, init_method=url, rank=0, world_size=2, timeout=BOUND)
    except RuntimeError as error:
        world.note(kind=type(error).__name__, error=str(error).splitlines()[0])
    world.note(after_s=time.monotonic() - start)


def without_a_variable(world: World) -> None:
    """Rank 0 of a world of one asks for it by environment, each time with another variable missing."""
    complete = {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    complete["MASTER_PORT"] = str(shared_port(world))
    for missing in complete:
        os.environ.update(complete)
        del os.environ[missing]
        try:
            dist.init_process_group(world.backend, timeout=BOUND)
            dist.destroy_process_group()
            world.note(**{missing: ""})
        except ValueError as error:
            world.note(**{missing: str(error)})


def connections_eager(world: World) -> None:
    """Connections of this rank when all have initialised, and when two of them have had a message."""
    world.init()
    world.meet("initialised")
    world.note(at_start=_connections())
    world.meet("counted")
    if world.rank < 2:
        _ = dist.send(torch.ones(1), 1) if world.rank == 0 else dist.recv(torch.ones(1), 0)
    world.meet("sent")
    world.note(after_send=_connections())
    world.meet("counted again")


def connections_lazy(world: World) -> None:
    """The same; the environment says TORCH_GLOO_LAZY_INIT=1."""
    connections_eager(world)


def _connections() -> int:
    connections = psutil.Process().net_connections("inet")
    return sum(one.status == psutil.CONN_ESTABLISHED for one in connections)
