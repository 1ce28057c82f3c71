"""Ranks in and out of groups, groups from a mesh, and groups that shrink."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

if TYPE_CHECKING:
    from ppwork.claims.rank import World


def translated(world: World) -> None:
    """In a group of ranks 3 and 1: their ranks there and back, and what a rank outside gets."""
    group = dist.new_group([3, 1])
    if world.rank in (1, 3):
        world.note(ranks=dist.get_process_group_ranks(group), mine=dist.get_group_rank(group, world.rank))
        world.note(back=[dist.get_global_rank(group, one) for one in range(2)])
    if world.rank == 1:
        try:
            world.note(outside=dist.get_group_rank(group, 0))
        except ValueError as error:
            world.note(outside=str(error))


def told_by_broadcasts(world: World) -> None:
    """The same without asking: each first of the group broadcasts its rank in the world."""
    group = dist.new_group([3, 1])
    if world.rank in (1, 3):
        first = torch.full((1,), float(world.rank), device=world.device)
        dist.broadcast(first, group=group, group_src=0)
        world.note(first=first.item())


def shrunk(world: World) -> None:
    """Ranks 0 and 1 of three go on without rank 2."""
    dist.all_reduce(torch.ones(1, device=world.device))
    if world.rank == 2:
        return
    try:
        smaller = dist.shrink_group([2])
        total = torch.ones(1, device=world.device)
        dist.all_reduce(total, group=smaller)
        world.note(size=dist.get_world_size(smaller), total=total.item())
    except TypeError as error:
        world.note(error=str(error))


def new_group_of_the_rest(world: World) -> None:
    """The same by ``new_group``, which rank 2 does not call: it may be dead."""
    dist.all_reduce(torch.ones(1, device=world.device))
    if world.rank == 2:
        return
    smaller = dist.new_group([0, 1], use_local_synchronization=True)
    total = torch.ones(1, device=world.device)
    dist.all_reduce(total, group=smaller)
    world.note(size=dist.get_world_size(smaller), total=total.item())


def mesh_of_everybody(world: World) -> None:
    """A mesh of two rows and two columns makes the world, and a group per row and per column."""
    mesh = init_device_mesh(world.device.type, (2, 2), mesh_dim_names=("pp", "tp"))
    world.note(started=dist.is_initialized(), place=mesh.get_coordinate())
    for name in ("pp", "tp"):
        group = mesh.get_group(name)
        members = [torch.zeros(1, device=world.device) for _ in range(2)]
        dist.all_gather(members, torch.full((1,), float(world.rank), device=world.device), group=group)
        world.note(**{name: [one.item() for one in members]})


def mesh_without_rank_0(world: World) -> None:
    """A mesh of two is asked for in a world of three: whose is it?"""
    try:
        mesh = init_device_mesh(world.device.type, (2,))
        world.note(ranks=mesh.mesh.tolist(), place=mesh.get_coordinate())
    except (RuntimeError, ValueError) as error:
        world.note(error=str(error).splitlines()[0])


def mesh_from_a_group(world: World) -> None:
    """A mesh is made from the group of ranks 1 and 2, by these."""
    group = dist.new_group([1, 2])
    if world.rank:
        mesh = DeviceMesh.from_group(group, world.device.type)
        world.note(ranks=mesh.mesh.tolist(), place=mesh.get_coordinate())


def split(world: World) -> None:
    """The world is split into ranks 0 and 1, and rank 2."""
    try:
        part = dist.split_group(split_ranks=[[0, 1], [2]])
        world.note(size=part.size() if part is not None else 0)
    except (RuntimeError, ValueError) as error:
        world.note(error=str(error).splitlines()[0])
