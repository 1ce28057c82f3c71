"""Point-to-point claims: what has happened when a call returns, and when a tensor is free again."""

# ruff: noqa: S101  isend and irecv return None outside their group: the asserts say that we are inside

from __future__ import annotations

import contextlib
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ppwork.claims.rank import World

LATE_S = 0.4


def _connect(world: World) -> None:
    """Exchange once: that two ranks connect at their first exchange is not what is looked at here."""
    tensor = torch.zeros(1, device=world.device)
    if world.rank == 0:
        dist.send(tensor, 1)
        dist.recv(tensor, 1)
    else:
        dist.recv(tensor, 0)
        dist.send(tensor, 0)
    dist.barrier()


def late_receiver(world: World) -> None:
    """Rank 0 sends 4 bytes and 16 MB; rank 1 comes late for each. All clocks are this machine's one."""
    _connect(world)
    for name, elements in (("small", 1), ("large", 4 << 20)):
        tensor = torch.ones(elements, device=world.device)
        if world.rank == 1:
            time.sleep(LATE_S)
            world.note(**{f"{name}_came": time.monotonic()})
            dist.recv(tensor, 0)
        else:
            world.note(**{f"{name}_called": time.monotonic()})
            dist.send(tensor, 1)
            world.note(**{f"{name}_returned": time.monotonic()})


def late_sender(world: World) -> None:
    """Rank 1 receives; rank 0 comes late with the message."""
    _connect(world)
    tensor = torch.full((4,), 1.0 - world.rank, device=world.device)
    if world.rank == 0:
        time.sleep(LATE_S)
        world.note(came=time.monotonic())
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
        world.note(returned=time.monotonic(), arrived=tensor.tolist())


def overwritten_before_wait(world: World) -> None:
    """Rank 0 overwrites the tensor between ``isend`` and ``wait``, and then lets rank 1 receive."""
    _connect(world)
    store, tensor = world.store("turn"), torch.full((4 << 20,), 1.0, device=world.device)
    if world.rank == 0:
        work = dist.isend(tensor, 1)
        tensor.fill_(2.0)
        store.set("receive", "now")
        assert work is not None
        work.wait()
        world.note(wait_returned=time.monotonic())
    else:
        store.get("receive")
        time.sleep(0.1)
        world.note(came=time.monotonic())
        dist.recv(tensor, 0)
        world.note(arrived=[tensor.min().item(), tensor.max().item()])


def overwritten_after_wait(world: World) -> None:
    """The same, and the tensor is overwritten after ``wait``."""
    _connect(world)
    store, tensor = world.store("turn"), torch.full((4 << 20,), 1.0, device=world.device)
    if world.rank == 0:
        work = dist.isend(tensor, 1)
        store.set("receive", "now")
        assert work is not None
        work.wait()
        tensor.fill_(2.0)
    else:
        store.get("receive")
        dist.recv(tensor, 0)
        world.note(arrived=[tensor.min().item(), tensor.max().item()])


def read_before_wait(world: World) -> None:
    """Rank 1 reads its buffer between ``irecv`` and ``wait``, and after it."""
    _connect(world)
    if world.rank == 0:
        time.sleep(LATE_S)
        dist.send(torch.full((4,), 1.0, device=world.device), 1)
    else:
        tensor = torch.full((4,), -1.0, device=world.device)
        work = dist.irecv(tensor, 0)
        world.note(before=tensor.tolist())
        assert work is not None
        work.wait()
        world.note(after=tensor.tolist())


def reused_after_send(world: World) -> None:
    """Rank 0 overwrites the buffer as soon as ``send`` returns: on CUDA, from another stream."""
    _connect(world)
    tensor = torch.full((4 << 20,), 1.0, device=world.device)
    if world.rank == 0:
        dist.send(tensor, 1)
        with torch.cuda.stream(torch.cuda.Stream() if tensor.is_cuda else None):  # type: ignore[no-untyped-call]
            tensor.fill_(2.0)
    else:
        time.sleep(LATE_S)
        dist.recv(tensor, 0)
        world.note(arrived=[tensor.min().item(), tensor.max().item()])


def reused_after_answer(world: World) -> None:
    """Rank 0 overwrites the buffer when the receiver has said that it has the message."""
    _connect(world)
    tensor = torch.full((4 << 20,), 1.0, device=world.device)
    answer = torch.zeros(1, device=world.device)
    if world.rank == 0:
        dist.send(tensor, 1)
        dist.recv(answer, 1)
        answer.item()  # on CUDA: until the answer is here, not until it is enqueued
        tensor.fill_(2.0)
    else:
        time.sleep(LATE_S)
        dist.recv(tensor, 0)
        world.note(arrived=[tensor.min().item(), tensor.max().item()])
        dist.send(answer, 0)


def one_buffer_for_two(world: World) -> None:
    """Rank 0 has two messages in flight from one buffer."""
    buffer = torch.empty(1 << 20, device=world.device)
    _two_messages(world, buffer, buffer)


def a_buffer_each(world: World) -> None:
    """Rank 0 has two messages in flight, each from its own buffer."""
    _two_messages(world, torch.empty(1 << 20, device=world.device), torch.empty(1 << 20, device=world.device))


def _two_messages(world: World, first: torch.Tensor, second: torch.Tensor) -> None:
    _connect(world)
    store = world.store("turn")
    if world.rank == 0:
        works = [dist.isend(buffer.fill_(value), 1) for value, buffer in ((1.0, first), (2.0, second))]
        store.set("receive", "now")
        for work in works:
            assert work is not None
            work.wait()
    else:
        store.get("receive")
        for name in ("first", "second"):
            dist.recv(first, 0)
            world.note(**{name: [first.min().item(), first.max().item()]})


def batch_of_two_first(world: World) -> None:
    """The first thing on the group is a batch between ranks 0 and 1; rank 2 does nothing."""
    _swap(world)
    world.meet("over")


def batch_of_two_later(world: World) -> None:
    """The same batch, after an all-reduce of all three."""
    dist.all_reduce(torch.ones(1, device=world.device))
    _swap(world)


def batch_with_a_late_rank(world: World) -> None:
    """Ranks 0 and 1 swap in the group's first batch; rank 2 comes when they are done, or after 3 s."""
    store = world.store("turn")
    if world.rank < 2:
        _swap(world)
        world.note(returned=time.monotonic())
        store.set(f"rank {world.rank}", "done")
    else:
        with contextlib.suppress(RuntimeError):  # they are not done: then it is rank 2 that they wait for
            store.wait(["rank 0", "rank 1"], timedelta(seconds=3))
        world.note(came=time.monotonic())
    dist.all_reduce(torch.ones(1, device=world.device))


def batch_after_a_barrier(world: World) -> None:
    """Ranks 0 and 1 swap when a barrier has brought everybody, rank 2 too, to the group."""
    if world.rank == 2:
        time.sleep(LATE_S)
        world.note(came=time.monotonic())
    dist.barrier()
    if world.rank < 2:
        _swap(world)
        world.note(returned=time.monotonic())


def _swap(world: World) -> None:
    if world.rank < 2:
        peer = 1 - world.rank
        mine = torch.full((4,), float(world.rank), device=world.device)
        other = torch.empty(4, device=world.device)
        world.note(tried=True)
        swap = [dist.P2POp(dist.isend, mine, peer), dist.P2POp(dist.irecv, other, peer)]
        for work in dist.batch_isend_irecv(swap):
            work.wait()
        world.note(got=other.tolist())
