"""Bounds, the way out, and what is left when a rank is gone."""

from __future__ import annotations

import os
import threading
import time

import torch
import torch.distributed as dist

from ppwork.claims.rank import World

SHUTDOWN = -1.0


def constants(world: World) -> None:
    """Read what is built in, and what a group has that was made without a timeout."""
    from torch.distributed import constants as built_in

    bounds = {"others": built_in.default_pg_timeout, "nccl": built_in.default_pg_nccl_timeout}
    world.note(**{name: bound and bound.total_seconds() for name, bound in bounds.items()})
    dist.init_process_group(world.backend, store=world.store(), rank=0, world_size=1)
    backend = dist.group.WORLD._get_backend(world.device)  # type: ignore[union-attr]  # no public way to read it
    world.note(group=backend.options._timeout.total_seconds())


def past_the_timeout(world: World) -> None:
    """Rank 1 receives what rank 0 never sends; the group's timeout is 1 s."""
    dist.barrier()
    if world.rank == 0:
        time.sleep(1.6)
    else:
        start = time.monotonic()
        try:
            tensor = torch.zeros(4, device=world.device)
            dist.recv(tensor, 0)
            tensor.sum().item()  # on CUDA: until it is here
        except RuntimeError as error:
            world.note(raised_s=time.monotonic() - start, error=str(error).splitlines()[0])
        time.sleep(0.3)
        world.note(went_on=True)


def hang_with_two_seconds(world: World) -> None:
    """Rank 1 receives what rank 0 never sends; the group's timeout is 2 s."""
    dist.barrier()
    if world.rank == 0:
        time.sleep(2.6)
    else:
        start = time.monotonic()
        try:
            dist.recv(torch.zeros(4, device=world.device), 0)
        except RuntimeError:
            world.note(raised_s=time.monotonic() - start)


def hang_with_the_default(world: World) -> None:
    """The same hang in a group without a timeout: watched for 1 s, and the bound is read, not waited for."""
    dist.init_process_group(world.backend, store=world.store(), rank=world.rank, world_size=world.size)
    dist.barrier()
    backend = dist.group.WORLD._get_backend(world.device)  # type: ignore[union-attr]  # no public way to read it
    world.note(bound_s=backend.options._timeout.total_seconds())
    if world.rank == 1:
        receiver = threading.Thread(
            target=dist.recv, args=(torch.zeros(4, device=world.device), 0), daemon=True
        )
        receiver.start()
        receiver.join(1.0)
        world.note(waiting=receiver.is_alive())
    time.sleep(1.2)


def one_does_not_destroy(world: World) -> None:
    """Two groups, a collective in each; rank 0 destroys them, rank 1 just ends. Nothing skips the exit."""
    _used_groups()
    if world.rank == 0:
        dist.destroy_process_group()
    world.note(ended=True)


def all_destroy(world: World) -> None:
    """The same, and both destroy them."""
    _used_groups()
    dist.destroy_process_group()
    world.note(ended=True)


def _used_groups() -> None:
    other = dist.new_group([0, 1])
    for group in (None, other):
        dist.barrier(group=group)


def leaves_without_a_word(world: World) -> None:
    """Rank 0 sends two results and destroys its group; rank 1 waits for a third."""
    if world.rank == 0:
        for value in (1.0, 2.0):
            dist.send(torch.tensor([value], device=world.device), 1)
        dist.destroy_process_group()
        time.sleep(0.3)  # alive, and no longer a member
    else:
        got: list[float] = []
        start = time.monotonic()
        try:
            _receive_until_shutdown(world, got)
        except RuntimeError as error:
            world.note(error=str(error).splitlines()[0], after_s=time.monotonic() - start)
        world.note(got=got)


def says_shutdown(world: World) -> None:
    """Rank 0 sends two results and SHUTDOWN; then both destroy their groups."""
    if world.rank == 0:
        for value in (1.0, 2.0, SHUTDOWN):
            dist.send(torch.tensor([value], device=world.device), 1)
    else:
        got: list[float] = []
        _receive_until_shutdown(world, got)
        world.note(got=got)
    dist.destroy_process_group()
    world.note(destroyed=True)


def _receive_until_shutdown(world: World, got: list[float]) -> None:
    tensor = torch.zeros(1, device=world.device)
    while SHUTDOWN not in got:
        dist.recv(tensor, 0)
        got.append(tensor.item())


def aborted_from_a_thread(world: World) -> None:
    """Rank 1 is in ``recv``; after 0.3 s a thread calls ``abort`` on the group, whose timeout is 1.2 s."""
    dist.barrier()
    if world.rank == 0:
        time.sleep(1.8)
    else:
        start = time.monotonic()
        watchdog = threading.Timer(0.3, _abort, [world, start])
        watchdog.start()
        try:
            dist.recv(torch.zeros(4), 0)
        except RuntimeError as error:
            world.note(recv_ended_s=time.monotonic() - start, error=str(error).splitlines()[0])


def _abort(world: World, start: float) -> None:
    dist.group.WORLD.abort()  # type: ignore[union-attr]
    world.note(aborted_s=time.monotonic() - start)


def ended_from_a_thread(world: World) -> None:
    """The same, and the thread ends the process instead."""
    dist.barrier()
    if world.rank == 0:
        time.sleep(0.5)
    else:
        threading.Timer(0.3, os._exit, [3]).start()
        dist.recv(torch.zeros(4), 0)


def survivors(world: World) -> None:
    """Rank 0 dies; ranks 1 and 2 see it, and then send to each other in the same group."""
    dist.barrier()
    if world.rank == 0:
        os._exit(9)
    tensor = torch.full((4,), float(world.rank))
    start = time.monotonic()
    try:
        dist.recv(tensor, 0)
    except RuntimeError as error:
        world.note(seen_s=time.monotonic() - start, error=str(error).splitlines()[0])
    if world.rank == 1:
        dist.send(tensor, 2)
        dist.recv(tensor, 2)
    else:
        dist.recv(tensor, 1)
        dist.send(tensor + 1, 1)
    world.note(got=tensor.tolist())
    try:
        dist.all_reduce(tensor)
    except RuntimeError as error:
        world.note(collective=str(error).splitlines()[0])
