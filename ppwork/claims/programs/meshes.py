"""Ranks in and out of groups, groups from a mesh, and groups that shrink."""

from __future__ import annotations

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ppwork.claims.programs.startup import shared_port
from ppwork.claims.rank import World


def translated(world: World) -> None:
    """In a group of ranks 3 and 1: their ranks there and back, and what a rank outside gets."""
    group = dist.new_group([3, 1])
    world.meet("created")  # who left earlier would break the other's connecting
    if world.rank in (1, 3) and group is not None:
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
    """Ranks 0 and 1 of three go on without rank 2, by ``shrink_group``."""
    dist.all_reduce(torch.ones(1, device=world.device))
    if world.rank != 2:
        try:
            _sum(world, dist.shrink_group([2]))
        except (TypeError, RuntimeError) as error:
            world.note(error=str(error).splitlines()[0])
    world.meet("over")


def new_group_of_the_rest(world: World) -> None:
    """The same by ``new_group``, which rank 2 does not call: it may be dead."""
    dist.all_reduce(torch.ones(1, device=world.device))
    if world.rank != 2:
        _sum(world, dist.new_group([0, 1], use_local_synchronization=True))
    world.meet("over")


def _sum(world: World, group: dist.ProcessGroup | None) -> None:
    total = torch.ones(1, device=world.device)
    dist.all_reduce(total, group=group)
    world.note(size=dist.get_world_size(group), total=total.item())


def mesh_of_everybody(world: World) -> None:
    """A mesh of two rows and two columns, and nothing else: no group was made before."""
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(shared_port(world)))
    mesh = init_device_mesh(world.device.type, (2, 2), mesh_dim_names=("pp", "tp"))
    world.note(started=dist.is_initialized(), place=mesh.get_coordinate())
    for name in ("pp", "tp"):
        group = mesh.get_group(name)
        members = [torch.zeros(1, device=world.device) for _ in range(2)]
        dist.all_gather(members, torch.full((1,), float(world.rank), device=world.device), group=group)
        world.note(**{name: [int(one.item()) for one in members]})
        world.note(**{f"slice_{name}": dist.get_process_group_ranks(mesh[name].get_group())})


def mesh_without_rank_0(world: World) -> None:
    """A mesh of two is asked for in a world of three: whose is it?"""
    mesh = init_device_mesh(world.device.type, (2,))
    world.note(ranks=mesh.mesh.tolist(), place=mesh.get_coordinate())


def mesh_from_a_group(world: World) -> None:
    """A mesh is made from the group of ranks 1 and 2, by these."""
    group = dist.new_group([1, 2])
    if world.rank and group is not None:
        mesh = DeviceMesh.from_group(group, world.device.type)
        world.note(ranks=mesh.mesh.tolist(), place=mesh.get_coordinate())


def bounds_of_a_mesh(world: World) -> None:
    """The world has a timeout of 20 s; what have the groups of a mesh, of one dimension and of two?"""
    square = init_device_mesh(world.device.type, (2, 2), mesh_dim_names=("pp", "tp"))
    line = init_device_mesh(world.device.type, (4,), mesh_dim_names=("all",))
    ours = dist.new_group([world.rank], timeout=timedelta(seconds=20), use_local_synchronization=True)
    for name, group in (
        ("row", square.get_group("tp")),
        ("line", line.get_group("all")),
        ("from_group", DeviceMesh.from_group(ours, world.device.type).get_group()),
    ):
        backend = group._get_backend(world.device)  # no public way to read it
        world.note(**{name: backend.options._timeout.total_seconds()})


def places_in_a_mesh(world: World) -> None:
    """Where a rank stands in each dimension of a mesh of 2 by 2, and in the mesh laid flat."""
    square = init_device_mesh(world.device.type, (2, 2), mesh_dim_names=("pp", "tp"))
    world.note(local=[square.get_local_rank("pp"), square.get_local_rank("tp")])
    world.note(place=list(square.get_coordinate() or ()), public=hasattr(square, "flatten"))
    flat = (square.flatten if hasattr(square, "flatten") else square._flatten)("all")
    total = torch.full((1,), world.rank + 1.0, device=world.device)
    dist.all_reduce(total, group=flat.get_group())
    world.note(flat=flat.mesh.tolist(), total=total.item(), local_of_flat=flat.get_local_rank())


def split_and_made(world: World) -> None:
    """The world is cut in two by ``split_group``; a mesh of 2 by 2 is made, which needs the same groups."""
    try:
        _sum(world, dist.split_group(split_ranks=[[0, 1], [2, 3]]))
        world.note(split="")
    except (AttributeError, RuntimeError, ValueError) as error:
        world.note(split=str(error).splitlines()[0])
    world.meet("split")
    square = init_device_mesh(world.device.type, (2, 2), mesh_dim_names=("pp", "tp"))
    _sum(world, square.get_group("tp"))


def one_group_destroyed(world: World) -> None:
    """Of three groups with the same ranks one is destroyed and made again; what do they all add up to?"""
    kept, ended = dist.new_group(), dist.new_group()
    for group in (kept, ended):
        dist.all_reduce(torch.ones(1, device=world.device), group=group)
    dist.destroy_process_group(ended)
    world.meet("destroyed")
    again = dist.new_group()
    for name, one in (("world", None), ("kept", kept), ("again", again), ("ended", ended)):
        total = torch.ones(1, device=world.device)
        try:
            dist.all_reduce(total, group=one)
            world.note(**{name: total.item()})
        except (RuntimeError, ValueError) as error:
            world.note(**{f"{name}_error": str(error).splitlines()[0]})


def bound_to_a_device(world: World) -> None:
    """Groups are made with a ``device_id``: a CPU, a GPU without its number, and GPU 0."""
    for name in ("cpu", "cuda", "cuda:0"):
        try:
            group = dist.new_group(device_id=torch.device(name))
            world.note(**{name: str(getattr(group, "bound_device_id", None))})
        except (RuntimeError, ValueError) as error:
            world.note(**{f"{name}_error": str(error).splitlines()[0]})
    world.note(gpus=torch.cuda.device_count())
