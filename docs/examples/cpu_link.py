"""A mesh that sums on its GPUs, and a rank 0 that has none: chunks and results travel on the CPU, by gloo.

Each mesh rank takes a GPU, the first one GPU 0. Without GPUs the same program sums on the CPU. Run it with::

    torchrun --standalone --nproc-per-node 3 cpu_link.py
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ppwork.ranks import MeshPlane, Plan, Stage0Plane, join

MESH, CHUNKS, DEPTH = int(os.environ["WORLD_SIZE"]) - 1, 6, 2


def mesh_of_gpus() -> DeviceMesh:
    """Return the mesh ranks as a ``DeviceMesh``, whose group sums CUDA tensors by NCCL; on each mesh rank."""
    on_gpu = torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) - 1)
    backend = "cpu:gloo,cuda:nccl" if on_gpu else "gloo"  # ppwork compares calls by the part for the CPU
    group = dist.new_group([*range(1, MESH + 1)], backend=backend, use_local_synchronization=True)
    return DeviceMesh.from_group(group, "cuda" if on_gpu else "cpu", mesh_dim_names=("tp",))


def drive(plane: Stage0Plane) -> None:
    """Be rank 0: it prints the sum of each result."""
    for k in range(CHUNKS + DEPTH):
        if k >= DEPTH:
            result, _ = plane.receive_result()
            y, device = result.tensors["y"], result.metadata["summed on"]
            print(f"chunk {k - DEPTH}: {y.sum().item():.0f}, summed on {device}", flush=True)
            plane.release_result()
        if k < CHUNKS:
            plane.send({"x": torch.full((4,), float(k))})
    plane.shutdown()


def serve(plane: MeshPlane) -> None:
    """Be a mesh rank: its share of 10 x is summed on the device of its mesh."""
    device = plane.device_mesh.device_type
    for chunk in plane.chunks():
        y = chunk.tensors["x"].to(device) * 10 / plane.tp.size
        dist.all_reduce(y, group=plane.tp.group)
        plane.reply({"y": y.cpu()}, metadata={"summed on": y.device.type})


def main() -> None:
    """Be one rank."""
    dist.init_process_group("gloo")
    mesh = mesh_of_gpus() if dist.get_rank() else None
    with join(Plan(mesh_size=MESH, in_flight_depth=DEPTH, backend="gloo"), mesh=mesh) as plane:
        if isinstance(plane, Stage0Plane):
            drive(plane)
        elif isinstance(plane, MeshPlane):
            serve(plane)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
