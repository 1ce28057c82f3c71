"""Groups: who has to create them, in which order, when, and what ranks mean in them."""

# ruff: noqa: S101  isend and irecv return None outside their group: the asserts say that we are inside

from __future__ import annotations

import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ppwork.claims.rank import World

BOUND = timedelta(seconds=1)
"""Of each group that is to fail: ``new_group`` does not take over the world's timeout."""


def one_rank_left_out(world: World) -> None:
    """Rank 0, which will not be a member, does not call ``new_group``; ranks 1 and 2 use the group."""
    if world.rank != 0:
        mesh = dist.new_group([1, 2])
        tensor = torch.full((4,), float(world.rank), device=world.device)
        dist.broadcast(tensor, 1, group=mesh)
        world.note(got=tensor.tolist())
    world.meet("over")


def one_rank_late(world: World) -> None:
    """All three call ``new_group([1, 2])``, rank 0 late."""
    if world.rank == 0:
        time.sleep(0.4)
        world.note(came=time.monotonic())
    dist.new_group([1, 2])
    world.note(returned=time.monotonic())
    world.meet("over")


def left_out_until_told(world: World) -> None:
    """Rank 0 waits in the store until ranks 1, 2, 3 have used their group: it cannot have helped them."""
    store = world.store("told")
    if world.rank == 0:
        for rank in (1, 2, 3):
            store.get(f"sum of rank {rank}")
        world.note(called=False)
    else:
        mesh = dist.new_group([3, 1, 2])
        tensor = torch.tensor([10.0**world.rank], device=world.device)
        dist.all_reduce(tensor, group=mesh)
        store.set(f"sum of rank {world.rank}", str(tensor.item()))
        world.note(total=tensor.item())


def left_out_of_the_first(world: World) -> None:
    """Rank 0 leaves out one ``new_group``; when it is there, all ranks call the next one, of all."""
    if world.rank != 0:
        dist.new_group([1, 2])
    world.meet("created")  # rank 0 would take rank 1's place in it: both are the first of a group of one name
    world.note(tried=True)
    everybody = dist.new_group([0, 1, 2], timeout=BOUND)
    tensor = torch.full((4,), float(world.rank), device=world.device)
    dist.broadcast(tensor, 1, group=everybody)
    world.note(got=tensor.tolist())


def created_in_another_order(world: World) -> None:
    """Rank 0 creates forward, then back; rank 1 the other way round; then rank 0 sends in ``forward``."""
    if world.rank == 0:
        forward, back = dist.new_group([0, 1], timeout=BOUND), dist.new_group([0, 1], timeout=BOUND)
    else:
        back, forward = dist.new_group([0, 1], timeout=BOUND), dist.new_group([0, 1], timeout=BOUND)
    _one_each_way(world, forward, back)


def created_in_one_order(world: World) -> None:
    """Both create forward, then back, and all ranks call each ``new_group``."""
    forward, back = dist.new_group([0, 1]), dist.new_group([0, 1])
    _one_each_way(world, forward, back)


def _one_each_way(world: World, forward: dist.ProcessGroup | None, back: dist.ProcessGroup | None) -> None:
    tensor = torch.full((4,), float(world.rank), device=world.device)
    if world.rank == 0:
        dist.send(tensor, 1, group=forward)
        dist.recv(tensor, 1, group=back)
    else:
        dist.recv(tensor, 0, group=forward)
        dist.send(tensor + 1, 0, group=back)
    world.note(got=tensor.tolist())


def created_late(world: World) -> None:
    """Rank 0 sends an envelope, then creates the group for the way back; rank 1 creates it, then receives."""
    envelope = torch.full((4,), 1.0, device=world.device)
    if world.rank == 0:
        dist.send(envelope, 1)
        back = dist.new_group([0, 1], timeout=BOUND)
        dist.recv(envelope, 1, group=back)
    else:
        back = dist.new_group([0, 1], timeout=BOUND)
        dist.recv(envelope, 0)
        dist.send(envelope, 0, group=back)
    world.note(done=True)


def created_up_front(world: World) -> None:
    """Both create the group first."""
    back = dist.new_group([0, 1])
    envelope = torch.full((4,), 1.0, device=world.device)
    if world.rank == 0:
        dist.send(envelope, 1)
        dist.recv(envelope, 1, group=back)
    else:
        dist.recv(envelope, 0)
        dist.send(envelope, 0, group=back)
    world.note(done=True)


def bounds_of_groups(world: World) -> None:
    """The world has a timeout of 1 s; one group is made without a timeout, one with it."""
    for name, group in (
        ("world", dist.group.WORLD),
        ("without", dist.new_group([0, 1])),
        ("with", dist.new_group([0, 1], timeout=BOUND)),
    ):
        assert group is not None
        backend = group._get_backend(world.device)  # no public way to read it
        world.note(**{name: backend.options._timeout.total_seconds()})
    world.meet("over")


def group_without_a_timeout(world: World) -> None:
    """Rank 1 waits in a group made without a timeout, in vain; rank 0 leaves after 1.8 s."""
    _waits_in_vain(world, dist.new_group([0, 1]))


def group_with_a_timeout(world: World) -> None:
    """The same in a group that was told the world's timeout of 1 s."""
    _waits_in_vain(world, dist.new_group([0, 1], timeout=BOUND))


def _waits_in_vain(world: World, group: dist.ProcessGroup | None) -> None:
    dist.barrier()
    start = time.monotonic()
    if world.rank == 0:
        time.sleep(1.8)
        dist.destroy_process_group()
    else:
        try:
            dist.recv(torch.zeros(4), 0, group=group)
        except RuntimeError as error:
            world.note(waited_s=time.monotonic() - start, error=str(error).splitlines()[0])


def handles_inside_and_outside(world: World) -> None:
    """All three call ``new_group([1, 2])``; each says what it got."""
    mesh = dist.new_group([1, 2])
    world.note(
        non_member=mesh is dist.GroupMember.NON_GROUP_MEMBER,
        handle=type(mesh).__name__,
        rank_in_it=dist.get_rank(mesh),
        size=dist.get_world_size(mesh),
    )
    world.meet("over")


def root_outside_the_group(world: World) -> None:
    """Ranks 1 and 2 broadcast in their group from ``src=0``, which they mean as their first rank."""
    mesh = dist.new_group([1, 2])
    world.meet("created")
    if world.rank != 0:
        tensor = torch.full((4,), float(world.rank), device=world.device)
        try:
            dist.broadcast(tensor, src=0, group=mesh)
            world.note(got=tensor.tolist())
        except (RuntimeError, ValueError) as error:
            world.note(raised=f"{type(error).__name__}: {error}")


def root_by_global_rank(world: World) -> None:
    """The same with ``src=1``, the leader's rank in the world; then with ``group_src=0``."""
    mesh = dist.new_group([1, 2])
    world.meet("created")
    if world.rank != 0:
        tensor = torch.full((4,), float(world.rank), device=world.device)
        dist.broadcast(tensor, src=1, group=mesh)
        world.note(src=tensor.tolist())
        tensor = torch.full((4,), float(world.rank), device=world.device)
        dist.broadcast(tensor, group_src=0, group=mesh)
        world.note(group_src=tensor.tolist())


def roots_tried(world: World) -> None:
    """Each member of the group of ranks 1 and 3 asks torch for each rank's place in it, in all operations."""
    mesh = dist.new_group([1, 3])
    world.meet("created")
    if world.rank not in (1, 3) or mesh is None:
        return
    for src in range(world.size):
        try:
            place = dist.get_group_rank(mesh, src)
            dist.broadcast_object_list([src], src=src, group=mesh)
            world.note(**{f"src_{src}": place})
        except (RuntimeError, ValueError) as error:
            world.note(**{f"src_{src}": type(error).__name__})
