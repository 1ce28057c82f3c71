"""The handles that ``isend`` and ``irecv`` return, on gloo."""

# ruff: noqa: S101  isend and irecv return None outside their group: the asserts say that we are inside

from __future__ import annotations

import threading
import time
from datetime import timedelta

import torch
import torch.distributed as dist

from ppwork.claims.rank import World


def polled(world: World) -> None:
    """Both ranks poll their handle for 0.4 s, though the message could pass at once; then they wait."""
    tensor = torch.full((4,), 1.0 - world.rank)
    work = dist.isend(tensor, 1) if world.rank == 0 else dist.irecv(tensor, 0)
    assert work is not None
    end, ever = time.monotonic() + 0.4, False
    while time.monotonic() < end and not ever:
        ever = work.is_completed()
        time.sleep(0.005)
    world.note(ever=ever, arrived=tensor.tolist())
    work.wait()
    world.note(after_wait=work.is_completed())


def asked_once_data_is_here(world: World) -> None:
    """Rank 1 watches the buffer itself: when the last element has changed, it asks the handle."""
    dist.barrier()
    if world.rank == 0:
        dist.send(torch.ones(1 << 10), 1)
        dist.barrier()
    else:
        tensor = torch.zeros(1 << 10)
        work = dist.irecv(tensor, 0)
        dist.barrier()  # rank 0 comes here when its send has returned
        while tensor[-1] == 0:
            time.sleep(0.005)
        assert work is not None
        world.note(ever=work.is_completed(), here=tensor.sum().item())


def waited_in_a_thread(world: World) -> None:
    """A helper thread waits, and the main thread asks the thread instead of the handle."""
    tensor = torch.full((4,), 1.0 - world.rank)
    work = dist.isend(tensor, 1) if world.rank == 0 else dist.irecv(tensor, 0)
    assert work is not None
    done = threading.Event()

    def wait() -> None:
        work.wait()
        done.set()

    threading.Thread(target=wait, daemon=True).start()
    world.note(told=done.wait(3.0), arrived=tensor.tolist())


def waited_twice(world: World) -> None:
    """Rank 1 waits for the same receive twice; the group's timeout is 1 s."""
    tensor = torch.full((4,), 1.0 - world.rank)
    if world.rank == 0:
        dist.send(tensor, 1)
        time.sleep(1.8)  # stay, so that only the second wait itself can end it
    else:
        work = dist.irecv(tensor, 0)
        assert work is not None
        work.wait()
        world.note(first=tensor.tolist())
        work.wait()
        world.note(second=True)


def waited_once(world: World) -> None:
    """Rank 1 drops the handle when it has waited."""
    tensor = torch.full((4,), 1.0 - world.rank)
    if world.rank == 0:
        dist.send(tensor, 1)
    else:
        work = dist.irecv(tensor, 0)
        if work is not None:
            work.wait()
            work = None
        world.note(first=tensor.tolist(), again=work is not None)


def polled_with_a_timeout(world: World) -> None:
    """Rank 1 looks for a message with a wait of 0.2 s; the message comes after that."""
    tensor = torch.full((4,), 1.0 - world.rank)
    if world.rank == 0:
        time.sleep(0.6)
        dist.send(tensor, 1)
        world.note(sent=True)
    else:
        work = dist.irecv(tensor, 0)
        assert work is not None
        try:
            work.wait(timedelta(seconds=0.2))
        except RuntimeError as error:
            world.note(poll=str(error))
        dist.recv(tensor, 0)
        world.note(arrived=tensor.tolist())


def polled_by_a_thread(world: World) -> None:
    """Rank 1 looks for 0.2 s whether its helper thread has the message; it comes after that."""
    tensor = torch.full((4,), 1.0 - world.rank)
    if world.rank == 0:
        time.sleep(0.6)
        dist.send(tensor, 1)
        world.note(sent=True)
    else:
        thread = threading.Thread(target=dist.recv, args=(tensor, 0), daemon=True)
        thread.start()
        thread.join(0.2)
        world.note(poll="" if thread.is_alive() else "here")
        thread.join()
        world.note(arrived=tensor.tolist())


def dropped_send(world: World) -> None:
    """Rank 0 lets go of the handle of message 1; then rank 1 receives; then rank 0 sends message 2."""
    _two_sends(world, keep=False)


def kept_send(world: World) -> None:
    """The same, and the handle of message 1 is kept and waited for."""
    _two_sends(world, keep=True)


def _two_sends(world: World, *, keep: bool) -> None:
    store = world.store("turn")
    if world.rank == 0:
        work = dist.isend(torch.tensor([1.0]), 1)
        if not keep:
            del work
        store.set("receive", "now")
        store.get("receiving")
        if keep:
            assert work is not None
            work.wait()
        dist.send(torch.tensor([2.0]), 1)
        world.note(sent=True)
    else:
        store.get("receive")
        tensor = torch.zeros(1)
        work = dist.irecv(tensor, 0)
        store.set("receiving", "now")
        assert work is not None
        work.wait()
        world.note(first=tensor.item())
        dist.recv(tensor, 0)
        world.note(second=tensor.item())


def dropped_receive(world: World) -> None:
    """Rank 1 lets go of the handle of its first receive, then receives again; rank 0 sends 1, then 2."""
    if world.rank == 0:
        dist.barrier()
        for value in (1.0, 2.0):
            dist.send(torch.tensor([value]), 1)
        world.note(sent=True)
    else:
        dist.irecv(torch.zeros(1), 0)
        dist.barrier()
        tensor = torch.zeros(1)
        dist.recv(tensor, 0)
        world.note(got=tensor.item())


def kept_receive(world: World) -> None:
    """The same, and the first receive's handle and buffer are kept."""
    if world.rank == 0:
        dist.barrier()
        for value in (1.0, 2.0):
            dist.send(torch.tensor([value]), 1)
        world.note(sent=True)
    else:
        first, tensor = torch.zeros(1), torch.zeros(1)
        work = dist.irecv(first, 0)
        dist.barrier()
        assert work is not None
        work.wait()
        world.note(first=first.item())
        dist.recv(tensor, 0)
        world.note(got=tensor.item())


def send_to_nobody(world: World) -> None:
    """Each rank sends to a rank that the world does not have."""
    dist.send(torch.ones(1), world.size + 5)


def isend_to_nobody(world: World) -> None:
    """The same by ``isend``."""
    dist.isend(torch.ones(1), world.size + 5)


def irecv_from_nobody(world: World) -> None:
    """Each rank asks for a message of a rank that the world does not have."""
    dist.irecv(torch.ones(1), world.size + 5)
