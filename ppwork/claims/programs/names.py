"""Names that were changed, what this build of torch is made of, and what a backend has."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from ppwork.claims.rank import World

SPELLINGS = (
    ("all_gather_single", "all_gather_into_tensor"),
    ("reduce_scatter_single", "reduce_scatter_tensor"),
)


def both_spellings(world: World) -> None:
    """Each collective by its new and its old name: is it there, is it right, does it warn?"""
    rank, size = world.rank, world.size
    whole = torch.arange(float(size), device=world.device)
    part = torch.full((1,), float(rank), device=world.device)
    for (new, old), given, wanted in zip(SPELLINGS, (part, whole), (whole, size * part), strict=True):
        for name in (new, old):
            if not hasattr(dist, name):
                world.note(**{name: {"there": False}})
                continue
            output = torch.zeros_like(wanted)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                getattr(dist, name)(output, given)
            kinds = [one.category.__name__ for one in caught if name in str(one.message)]
            seen = {"there": True, "right": torch.equal(output, wanted), "warned": "".join(kinds[:1])}
            world.note(**{name: seen})


def resolved_once(world: World) -> None:
    """The new name where it is, else the old one; with warnings made errors."""
    warnings.simplefilter("error")
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    output = torch.zeros(world.size, device=world.device)
    gather(output, torch.full((1,), float(world.rank), device=world.device))
    world.note(name=gather.__name__, got=output.tolist())


def nccl_of_the_build(world: World) -> None:
    """Which NCCL this build of torch has."""
    there = dist.is_nccl_available()
    version = torch.cuda.nccl.version() if there else ()  # type: ignore[no-untyped-call]
    world.note(nccl=list(version), torch=str(torch.__version__))


def every_collective(world: World) -> None:
    """Each row of the documentation's table of backends, on CPU tensors."""
    rank, size = world.rank, world.size
    one = torch.ones(1)
    many = [torch.ones(1) for _ in range(size)]
    at_first = many if rank == 0 else None
    calls: dict[str, Callable[[], Any]] = {
        "send": lambda: dist.send(one, 1) if rank == 0 else dist.recv(one, 0),
        "broadcast": lambda: dist.broadcast(one, 0),
        "all_reduce": lambda: dist.all_reduce(one),
        "reduce": lambda: dist.reduce(one, 0),
        "all_gather": lambda: dist.all_gather(many, one),
        "gather": lambda: dist.gather(one, at_first, 0),
        "scatter": lambda: dist.scatter(one, at_first, 0),
        "reduce_scatter": lambda: dist.reduce_scatter(one, many),
        "all_to_all": lambda: dist.all_to_all([torch.zeros(1) for _ in range(size)], many),
        "barrier": dist.barrier,
    }
    for name, call in calls.items():
        try:
            call()
            world.note(**{name: ""})
        except (RuntimeError, ValueError) as error:
            world.note(**{name: str(error).splitlines()[0]})
