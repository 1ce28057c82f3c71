"""What only NCCL shows: ranks that share a GPU, messages by tag, messages in a CUDA graph."""

# ruff: noqa: S101  isend and irecv return None outside their group: the asserts say that we are inside

from __future__ import annotations

import os

import torch
import torch.distributed as dist

from ppwork.claims.rank import World


def two_ranks_on_one_gpu(world: World) -> None:
    """Two ranks use the first GPU."""
    os.environ.pop("NCCL_HOSTID", None)
    _sum_on_the_first_gpu(world)


def two_ranks_as_of_two_hosts(world: World) -> None:
    """The same, and each says that it is on a host of its own."""
    os.environ.update(NCCL_HOSTID=f"host of rank {world.rank}", NCCL_SOCKET_IFNAME="=lo", NCCL_NET="Socket")
    _sum_on_the_first_gpu(world)


def _sum_on_the_first_gpu(world: World) -> None:
    torch.cuda.set_device(0)
    world.init(device_id=None)  # NCCL's refusal is to come from the all-reduce
    total = torch.ones(1, device="cuda:0")
    world.note(tried=True)
    try:
        dist.all_reduce(total)
        world.note(total=total.item())
    except RuntimeError as error:
        world.note(error=next((line for line in str(error).splitlines() if "Duplicate" in line), str(error)))


def received_by_tag(world: World) -> None:
    """Rank 0 sends 1 with tag 1, then 2 with tag 2; rank 1 receives tag 2 first."""
    first, second = torch.zeros(1, device=world.device), torch.zeros(1, device=world.device)
    if world.rank == 0:
        dist.send(first.fill_(1.0), 1, tag=1)
        dist.send(second.fill_(2.0), 1, tag=2)
    else:
        dist.recv(second, 0, tag=2)
        dist.recv(first, 0, tag=1)
        world.note(tag_1=first.item(), tag_2=second.item())


def received_in_order(world: World) -> None:
    """The same, received in the order in which they are sent."""
    first, second = torch.zeros(1, device=world.device), torch.zeros(1, device=world.device)
    if world.rank == 0:
        dist.send(first.fill_(1.0), 1)
        dist.send(second.fill_(2.0), 1)
    else:
        dist.recv(first, 0)
        dist.recv(second, 0)
        world.note(tag_1=first.item(), tag_2=second.item())


def captured_exchange(world: World) -> None:
    """``isend`` and ``irecv`` are captured into a CUDA graph, which is replayed with another number."""
    tensor = torch.zeros(4, device=world.device)

    def exchange() -> None:
        work = dist.isend(tensor, 1) if world.rank == 0 else dist.irecv(tensor, 0)
        assert work is not None
        work.wait()

    exchange()  # the connection is made outside the graph
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            exchange()
        tensor.fill_(7.0 if world.rank == 0 else 0.0)
        graph.replay()
        torch.cuda.synchronize()
        world.note(values=tensor.tolist())
    except RuntimeError as error:
        world.note(error=str(error).splitlines()[0])
