"""Names that were changed, and what this build of torch is made of."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import _functional_collectives as functional  # no public name

if TYPE_CHECKING:
    from collections.abc import Callable

    from ppwork.claims.rank import World

RENAMED = {"all_gather_single": "all_gather_into_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}
FUNCTIONAL = {"all_gather_single": "all_gather_tensor", "reduce_scatter_single": "reduce_scatter_tensor"}
METHODS = {"all_gather_single": "_allgather_base", "reduce_scatter_single": "_reduce_scatter_base"}


def both_spellings(world: World) -> None:
    """Each collective by its new and its old name: is it there, is it right, does it warn?"""
    rank, size = world.rank, world.size
    whole = torch.arange(float(size), device=world.device)
    part = torch.full((1,), float(rank), device=world.device)
    for new, old in RENAMED.items():
        given, wanted = (part, whole) if "gather" in new else (whole, size * part)
        for name in (new, old):
            output = torch.zeros_like(wanted)
            world.note(**{name: _tried(dist, name, lambda call, o=output, g=given: call(o, g) or o, wanted)})


def functional_spellings(world: World) -> None:
    """The same of the functional collectives, which return their output."""
    whole = torch.arange(float(world.size), device=world.device)
    part = torch.full((1,), float(world.rank), device=world.device)
    group = dist.group.WORLD
    for new, old in FUNCTIONAL.items():
        for name in (new, old):
            if "gather" in new:
                seen = _tried(functional, name, lambda call: call(part, 0, group) + 0, whole)
            else:
                seen = _tried(
                    functional, name, lambda call: call(whole, "sum", 0, group) + 0, world.size * part
                )
            world.note(**{name: seen})


def _tried(module: Any, name: str, use: Callable[[Any], Any], wanted: torch.Tensor) -> dict[str, Any]:  # noqa: ANN401
    if not hasattr(module, name):
        return {"there": False}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        right = torch.equal(use(getattr(module, name)), wanted)
    kinds = [one.category.__name__ for one in caught if name in str(one.message)]
    return {"there": True, "right": right, "warned": kinds[0] if kinds else ""}


def resolved_once(world: World) -> None:
    """The new name where it is, else the old one; with warnings made errors."""
    warnings.simplefilter("error")
    gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
    output = torch.zeros(world.size, device=world.device)
    gather(output, torch.full((1,), float(world.rank), device=world.device))
    world.note(name=gather.__name__, got=output.tolist())


def methods_of_a_group(world: World) -> None:
    """Which spellings the group's own methods have."""
    world.note(**{name: hasattr(dist.ProcessGroup, name) for pair in METHODS.items() for name in pair})


def old_operations(world: World) -> None:
    """``reduce_op``, the name before ``ReduceOp``: is it there, does it work, does it warn?"""
    tensor = torch.ones(1, device=world.device)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        dist.all_reduce(tensor, op=dist.reduce_op.SUM)
    world.note(total=tensor.item(), warned=[one.category.__name__ for one in caught])


def nccl_of_the_build(world: World) -> None:
    """Which NCCL this build of torch has."""
    there = dist.is_nccl_available()
    world.note(nccl=list(torch.cuda.nccl.version()) if there else None, torch=torch.__version__)


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
