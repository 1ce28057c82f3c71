"""Models of which each rank has a part, or a copy: tensor parallel, context parallel, data parallel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.nn
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from ppwork.claims.rank import World


def tensor_parallel_on_a_group(world: World) -> None:
    """Ranks 1 and 2 share two layers, one by columns, one by rows; rank 0 is not in it."""
    from torch.distributed.tensor import DTensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    group = dist.new_group([1, 2])
    if world.rank == 0 or group is None:
        return
    mesh = DeviceMesh.from_group(group, world.device.type)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8)).to(world.device)
    batch = torch.randn(4, 8).to(world.device)
    with torch.inference_mode():
        wanted = model(batch)
        parallelize_module(model, mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})
        world.note(difference=(model(batch) - wanted).abs().max().item())
    weight = model[0].get_parameter("weight")
    world.note(
        whole=list(weight.shape), part=list(weight.to_local().shape if isinstance(weight, DTensor) else ())
    )


def given_by_the_first(world: World) -> None:
    """Ranks 1 and 2 make one tensor of the mesh, each from other values."""
    _distributed(world, {})


def each_its_own(world: World) -> None:
    """The same with ``src_data_rank=None``."""
    _distributed(world, {"src_data_rank": None})


def _distributed(world: World, options: dict[str, Any]) -> None:
    from torch.distributed.tensor import Replicate, distribute_tensor

    group = dist.new_group([1, 2])
    if world.rank and group is not None:
        mine = torch.full((2,), float(world.rank), device=world.device)
        mesh = DeviceMesh.from_group(group, world.device.type)
        whole = distribute_tensor(mine, mesh, [Replicate()], **options)
        world.note(whole=whole.to_local().tolist(), mine=mine.tolist())


def attention_looked_up(world: World) -> None:
    """Causal attention over a sequence that two ranks share, called as ``nn.functional``'s."""

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)

    _shared_sequence(world, attend)


def attention_bound_before(world: World) -> None:
    """The same, called by a name of our own: ``from torch.nn.functional import ...``."""
    from torch.nn.functional import scaled_dot_product_attention

    def attend(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(query, key, value, is_causal=True)

    _shared_sequence(world, attend)


def _shared_sequence(world: World, attend: Callable[..., torch.Tensor]) -> None:
    from torch.distributed.tensor.experimental import context_parallel

    mesh = init_device_mesh(world.device.type, (world.size,))
    torch.manual_seed(0)
    kind = torch.float32 if world.device.type == "cpu" else torch.bfloat16
    query, key, value = (torch.randn(1, 2, 16, 16).to(world.device, kind) for _ in range(3))
    wanted, places = attend(query, key, value), torch.arange(16, device=world.device)
    shared = [query, key, value, places]  # cut in place: `places` says which rows are this rank's
    with torch.no_grad(), context_parallel(mesh, buffers=shared, buffer_seq_dims=[2, 2, 2, 0]):
        world.note(rows=places.tolist())
        try:
            got = attend(query, key, value)
            world.note(difference=(got - wanted[:, :, places]).abs().max().item())
        except (NotImplementedError, RuntimeError) as error:
            world.note(error=f"{type(error).__name__}: {str(error).splitlines()[0]}")


def data_parallel_start(world: World) -> None:
    """Each rank has another parameter; wrapped with ``init_sync`` and without, whose is it then?"""
    for sync in (True, False):
        layer = nn.Linear(1, 1, bias=False).to(world.device)
        nn.init.constant_(layer.weight, world.rank + 1.0)
        nn.parallel.DistributedDataParallel(layer, init_sync=sync)
        world.note(**{"synchronised" if sync else "own": layer.weight.item()})


def reduced_with_a_gradient(world: World) -> None:
    """A transposed tensor is all-reduced, by the call that has a gradient and by the plain one."""
    tensor = torch.arange(6.0, device=world.device).reshape(2, 3).t()
    try:
        with_gradient = tensor.clone(memory_format=torch.preserve_format).requires_grad_()
        reduced = torch.distributed.nn.functional.all_reduce(with_gradient)  # type: ignore[no-untyped-call]
        world.note(contiguous=with_gradient.is_contiguous(), with_gradient=reduced.tolist())
        dist.all_reduce(tensor)
        world.note(plain=tensor.tolist())
    except (RuntimeError, ValueError) as error:
        world.note(error=str(error).splitlines()[0])
