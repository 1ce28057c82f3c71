"""Object collectives: how many transfers, what time, whose work, and what unpickling does."""

from __future__ import annotations

import json
import os
import pickle
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d  # no public way to the flight recorder

from ppwork.claims.rank import World

ROUNDS = 12


class Witness:
    """Unpickling this writes the receiver's process id into a file that the sender named."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        """Have the receiver evaluate an expression."""
        return eval, (f"open({self.path!r}, 'w').write(str(__import__('os').getpid()))",)


class Counted:
    """Counts how often this process pickles one, and how often it unpickles one."""

    pickled = 0
    unpickled = 0

    def __reduce__(self) -> tuple[Any, ...]:
        """Count a pickling here, and an unpickling where it comes back."""
        Counted.pickled += 1
        return _arrived, ()


def _arrived() -> Counted:
    Counted.unpickled += 1
    return Counted()


def counted_pickles(world: World) -> None:
    """Each object collective of three ranks once, and what pickling it costs which rank."""
    first, size = world.rank == 0, world.size
    calls: dict[str, Callable[[], Any]] = {
        "all_gather_object": lambda: dist.all_gather_object([None] * size, Counted()),
        "gather_object": lambda: dist.gather_object(Counted(), [None] * size if first else None, dst=0),
        "scatter_object_list": lambda: dist.scatter_object_list(
            [None], [Counted() for _ in range(size)] if first else None, src=0
        ),
        "broadcast_object_list": lambda: dist.broadcast_object_list([Counted() if first else None], src=0),
    }
    for name, call in calls.items():
        Counted.pickled = Counted.unpickled = 0
        call()
        world.note(**{name: [Counted.pickled, Counted.unpickled]})


def recorded_broadcast_of_an_object(world: World) -> None:
    """One object is broadcast, and the flight recorder counts; unpickled, it runs what its sender chose."""
    proof = world.folder / "proof"
    dist.broadcast_object_list([Witness(str(proof)) if world.rank == 0 else None], src=0)
    dump = getattr(c10d, f"_dump_{'nccl' if world.backend == 'nccl' else 'fr'}_trace_json")
    names = [entry["profiling_name"] for entry in json.loads(dump())["entries"]]
    world.note(transfers=sum(name.endswith(":broadcast") for name in names), pid=os.getpid())
    if world.rank == 1:
        world.note(executed_by=int(proof.read_text()) if proof.exists() else None)


def counted_messages_of_an_object(world: World) -> None:
    """Rank 0 sends an object as ``send_object_list`` does; rank 1 takes it apart by plain ``recv``."""
    if world.rank == 0:
        dist.send_object_list([{"chunk": 7}], 1)
        world.note(returned=True)  # on gloo only when all that it sent was received
    else:
        size = torch.zeros(1, dtype=torch.int64, device=world.device)
        dist.recv(size, 0)
        body = torch.zeros(int(size), dtype=torch.uint8, device=world.device)
        dist.recv(body, 0)
        unpickled = pickle.loads(bytes(body.tolist()))  # noqa: S301  what it is about
        world.note(messages=len((size, body)), object=unpickled)


def four_megabytes(world: World) -> None:
    """4 MB by ``broadcast`` and by ``broadcast_object_list``, in turns; best of some."""
    tensor = torch.ones(1 << 20, device=world.device)
    times: dict[str, list[float]] = {"tensor": [], "object": []}
    for _ in range(ROUNDS):
        for name, taken in times.items():
            dist.barrier()
            start = time.perf_counter()
            if name == "tensor":
                dist.broadcast(tensor, 0)
            else:
                dist.broadcast_object_list([tensor] if world.rank == 0 else [None], src=0)
            tensor[0].item()
            taken.append(time.perf_counter() - start)
    world.note(**{f"{name}_ms": 1000 * min(taken) for name, taken in times.items()})


def there_and_back(world: World) -> None:
    """4 MB there and back by ``send`` and ``recv``, then as an object; the median of all ways."""
    tensor = torch.ones(1 << 20, device=world.device)
    peer = 1 - world.rank
    times: dict[str, list[float]] = {"tensor": [], "object": []}
    dist.barrier()
    for name, taken in times.items():
        for turn in range(ROUNDS):
            start, sends = time.perf_counter(), turn % 2 == world.rank
            if name == "tensor":
                (dist.send if sends else dist.recv)(tensor, peer)
                tensor[0].item()
            elif sends:
                dist.send_object_list([tensor], peer)
            else:
                dist.recv_object_list([None], peer)
            taken.append(time.perf_counter() - start)
    world.note(**{f"{name}_ms": 1000 * statistics.median(taken) for name, taken in times.items()})


def sizes(world: World) -> None:
    """1 KB to 16 MB, as a tensor and as an object, in turns; best of some."""
    for kilobytes, rounds in ((1, 20), (256, 10), (16384, 4)):
        tensor = torch.ones(kilobytes << 8, device=world.device)
        times: dict[str, list[float]] = {"tensor": [], "object": []}
        for _ in range(rounds):
            for name, taken in times.items():
                dist.barrier()
                start = time.perf_counter()
                if name == "tensor":
                    dist.broadcast(tensor, 0)
                else:
                    dist.broadcast_object_list([tensor] if world.rank == 0 else [None], src=0)
                tensor[0].item()
                taken.append(time.perf_counter() - start)
        world.note(**{f"{name}_{kilobytes}_ms": 1000 * min(taken) for name, taken in times.items()})
