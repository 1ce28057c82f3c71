"""What this build of torch has: backends, its own and ours, deprecated names, symmetric memory."""

from __future__ import annotations

import importlib.util
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from ppwork.claims.rank import World

BACKENDS = ("gloo", "nccl", "mpi", "ucc", "xccl")
OF_SEVERAL_GPUS = ("broadcast_multigpu", "all_reduce_multigpu", "all_gather_multigpu")


def asked_for_backends(world: World) -> None:
    """Which backends are built in, and which one torch would take for which device."""
    there = {name: bool(dist.is_backend_available(name)) for name in (*BACKENDS, "nonesuch")}
    by_function = {name: bool(getattr(dist, f"is_{name}_available")()) for name in BACKENDS}
    world.note(is_available=dist.is_available(), there=there, by_function=by_function)
    chosen = {device: dist.get_default_backend_for_device(device) for device in ("cpu", "cuda")}
    world.init()
    world.note(chosen=chosen, ours=dist.get_backend(), torch=str(torch.__version__))
    dist.destroy_process_group()


def deprecated_names(world: World) -> None:
    """``reduce_op``, the launch module, functions of several GPUs a rank: are they there, do they warn?"""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        total = torch.full((1,), world.rank + 1.0, device=world.device)
        dist.all_reduce(total, op=dist.reduce_op.SUM)
    world.note(reduce_op=total.item(), warned=[one.category.__name__ for one in caught][:1])
    world.note(launch=importlib.util.find_spec("torch.distributed.launch") is not None)
    world.note(several_gpus=[name for name in OF_SEVERAL_GPUS if hasattr(dist, name)])


def backend_of_ours(world: World) -> None:
    """A name that torch does not know, before we register a function that makes a group for it, and after."""
    try:
        world.init(backend="ours", store=world.store("before"))
        world.note(before="")
    except Exception as error:  # noqa: BLE001  which one differs by version
        world.note(before=str(error).splitlines()[0])
    asked = []

    def create(store: Any, rank: int, size: int, timeout: timedelta) -> object:  # noqa: ANN401  a store
        asked.append(size)
        return dist.ProcessGroupGloo(store, rank, size, timeout)

    dist.Backend.register_backend("ours", create, devices=["cpu"])
    world.meet("registered")
    world.init(backend="ours", store=world.store("after"))
    total = torch.ones(1)
    dist.all_reduce(total)
    world.note(asked=len(asked), name=dist.get_backend(), total=total.item())
    dist.destroy_process_group()


def symmetric_memory(world: World) -> None:
    """Buffers that ranks reach directly, asked for on this rank's device."""
    from torch.distributed import _symmetric_memory as symmetric

    try:
        buffer = symmetric.empty(4, device=world.device)
        world.note(device=world.device.type, made=list(buffer.shape))
    except RuntimeError as error:
        world.note(device=world.device.type, error=str(error).splitlines()[0])
