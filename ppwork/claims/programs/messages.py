"""What gloo's send and recv check of a message, which is little: sizes, dtypes, layouts, tags, ranks."""

# ruff: noqa: S101  isend and irecv return None outside their group: the asserts say that we are inside

from __future__ import annotations

import time

import torch
import torch.distributed as dist

from ppwork.claims.rank import World

LATE_S = 0.3
NARROW = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float8_e4m3fn": torch.float8_e4m3fn,
    "int16": torch.int16,
    "uint16": torch.uint16,
    "bool": torch.bool,
}


def longer_than_the_buffer(world: World) -> None:
    """Rank 0 sends 8 numbers, rank 1 has room for 4 and catches every exception that there is."""
    if world.rank == 0:
        dist.send(torch.ones(8), 1)
        world.note(sent=True)
        time.sleep(LATE_S)
    else:
        try:
            dist.recv(torch.zeros(4), 0)
        except BaseException as error:  # noqa: BLE001  nothing more could be caught
            world.note(caught=str(error))
        time.sleep(LATE_S)
        world.note(alive=True)


def length_first(world: World) -> None:
    """Rank 0 sends the length in a message of fixed size, then the numbers."""
    length = torch.tensor([8])
    if world.rank == 0:
        dist.send(length, 1)
        dist.send(torch.ones(8), 1)
        world.note(sent=True)
    else:
        dist.recv(length, 0)
        tensor = torch.zeros(int(length))
        dist.recv(tensor, 0)
        world.note(alive=True, arrived=tensor.tolist())


def shorter_than_the_buffer(world: World) -> None:
    """Rank 0 sends 2 numbers, rank 1 has room for 4."""
    if world.rank == 0:
        dist.send(torch.ones(2), 1)
    else:
        tensor = torch.full((4,), -7.0)
        dist.recv(tensor, 0)
        world.note(arrived=tensor.tolist())


def sent_with_its_length(world: World) -> None:
    """Rank 0 sends how many it will be, and rank 1 keeps so many."""
    length = torch.tensor([2])
    if world.rank == 0:
        dist.send(length, 1)
        dist.send(torch.ones(2), 1)
    else:
        tensor = torch.full((4,), -7.0)
        dist.recv(length, 0)
        dist.recv(tensor[: int(length)], 0)
        world.note(arrived=tensor[: int(length)].tolist())


def another_dtype(world: World) -> None:
    """Rank 0 sends float32, rank 1 receives into int32."""
    if world.rank == 0:
        dist.send(torch.ones(2, dtype=torch.float32), 1)
    else:
        tensor = torch.zeros(2, dtype=torch.int32)
        dist.recv(tensor, 0)
        world.note(arrived=tensor.tolist(), bits_of_one=torch.ones(1).view(torch.int32).item())


def dtype_first(world: World) -> None:
    """Rank 0 says which dtype it will be."""
    dtypes = (torch.float32, torch.int32)
    code = torch.tensor([dtypes.index(torch.float32)])
    if world.rank == 0:
        dist.send(code, 1)
        dist.send(torch.ones(2, dtype=torch.float32), 1)
    else:
        dist.recv(code, 0)
        tensor = torch.zeros(2, dtype=dtypes[int(code)])
        dist.recv(tensor, 0)
        world.note(arrived=tensor.tolist())


def changed_before_receive(world: World) -> None:
    """Rank 0 changes 4 bytes, and 1 MB, between ``isend`` and ``wait``, and then lets rank 1 receive."""
    _changed(world, copy=False)


def copied_before_send(world: World) -> None:
    """The same, and what is given to ``isend`` is a copy that nobody touches."""
    _changed(world, copy=True)


def _changed(world: World, *, copy: bool) -> None:
    store = world.store("turn")
    for name, elements in (("small", 1), ("large", 1 << 18)):
        tensor = torch.full((elements,), 1.0)
        if world.rank == 0:
            work = dist.isend(tensor.clone() if copy else tensor, 1)
            tensor.fill_(2.0)
            store.set(name, "receive now")
            assert work is not None
            work.wait()
        else:
            store.get(name)
            dist.recv(tensor, 0)
            world.note(**{name: [tensor.min().item(), tensor.max().item()]})


def every_second_column(world: World) -> None:
    """Rank 0 sends a view with gaps; rank 1 waits for it."""
    if world.rank == 0:
        try:
            dist.send(torch.ones(4, 4)[:, ::2], 1)
        except (RuntimeError, ValueError) as error:
            world.note(refused=str(error))
            time.sleep(1.5)  # stay, so that rank 1 waits for a message and not for a dead rank
    else:
        dist.recv(torch.zeros(4, 2), 0)
        world.note(arrived=True)


def made_contiguous(world: World) -> None:
    """Rank 0 sends a contiguous copy of the view."""
    if world.rank == 0:
        dist.send(torch.ones(4, 4)[:, ::2].contiguous(), 1)
    else:
        dist.recv(torch.zeros(4, 2), 0)
        world.note(arrived=True)


def dtypes_by_send(world: World) -> None:
    """Rank 0 sends one tensor of each dtype."""
    for name, dtype in NARROW.items():
        tensor = torch.full((4,), 1 - world.rank, dtype=torch.uint8).to(dtype)
        if world.rank == 0:
            dist.send(tensor, 1)
        else:
            dist.recv(tensor, 0)
            world.note(**{name: tensor.float().tolist() == [1.0] * 4})


def dtypes_by_broadcast(world: World) -> None:
    """Rank 0 broadcasts one tensor of each dtype."""
    for name, dtype in NARROW.items():
        tensor = torch.full((4,), 1 - world.rank, dtype=torch.uint8).to(dtype)
        try:
            dist.broadcast(tensor, 0)
            world.note(**{name: tensor.float().tolist() == [1.0] * 4})
        except RuntimeError as error:
            world.note(**{name: str(error).splitlines()[0]})


def dtypes_as_bytes(world: World) -> None:
    """Rank 0 broadcasts one tensor of each dtype, seen as bytes."""
    for name, dtype in NARROW.items():
        tensor = torch.full((4,), 1 - world.rank, dtype=torch.uint8).to(dtype)
        dist.broadcast(tensor.view(torch.uint8), 0)
        world.note(**{name: tensor.float().tolist() == [1.0] * 4})


def to_itself(world: World) -> None:
    """A rank sends to itself, by ``send`` and by ``isend`` with the receive posted before."""
    try:
        dist.send(torch.ones(1), world.rank)
    except (RuntimeError, ValueError) as error:
        world.note(send=str(error))
    try:
        tensor = torch.zeros(1)
        receive = dist.irecv(tensor, world.rank)
        work = dist.isend(torch.ones(1), world.rank)
        assert work is not None
        assert receive is not None
        work.wait()
        receive.wait()
        world.note(arrived=tensor.item())
    except (RuntimeError, ValueError) as error:
        world.note(isend=str(error))


def tags(world: World) -> None:
    """Rank 0 sends 1, 2, 3 with tag 0 and 4, 5 with tags 4, 5; rank 1 asks for tags 5, 4, 0, 0, 0."""
    tag_of = {1: 0, 2: 0, 3: 0, 4: 4, 5: 5}
    if world.rank == 0:
        works = [dist.isend(torch.tensor([number]), 1, tag=tag) for number, tag in tag_of.items()]
        for work in works:
            assert work is not None
            work.wait()
    else:
        order, tensor = [], torch.zeros(1, dtype=torch.int64)
        for tag in (5, 4, 0, 0, 0):
            dist.recv(tensor, 0, tag=tag)
            order.append(tensor.item())
        world.note(order=order)


def from_anybody(world: World) -> None:
    """Rank 2 is ready at once, rank 1 late; rank 0 receives twice without saying from whom."""
    if world.rank == 0:
        tensor, pairs = torch.zeros(1), []
        for _ in range(2):
            said = dist.recv(tensor)
            pairs.append([said, tensor.item()])
        world.note(pairs=pairs)
    else:
        time.sleep(LATE_S if world.rank == 1 else 0.0)
        dist.send(torch.full((1,), float(world.rank)), 0)
