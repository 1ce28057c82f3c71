"""Twenty chunks through rank 0 and a mesh of two, and how long each took. The sleeps stand for real work.

Run it at two depths, and compare::

    torchrun --standalone --nproc-per-node 3 overlap.py 1 runs/one
    torchrun --standalone --nproc-per-node 3 overlap.py 2 runs/two
"""

import sys
import time

import torch
import torch.distributed as dist

from ppwork.ranks import Plan, Stage0Plane, join

CHUNKS, DEPTH, FOLDER = 20, int(sys.argv[1]), sys.argv[2]


def encode(k: int) -> torch.Tensor:
    """Make chunk k, on rank 0."""
    time.sleep(0.04)
    return torch.full((4,), float(k))


def model(x: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
    """Compute this mesh rank's share, and sum the shares."""
    time.sleep(0.04)
    share = x / dist.get_world_size(group)
    dist.all_reduce(share, group=group)
    return share


with join(Plan(mesh_size=2, in_flight_depth=DEPTH), run_dir=FOLDER) as plane:
    if isinstance(plane, Stage0Plane):
        done, total = [], 0.0
        for k in range(CHUNKS + DEPTH):  # one more is sent before the oldest result is decoded
            if k >= DEPTH:
                result, _ = plane.receive_result()  # of chunk k - DEPTH
            if k < CHUNKS:
                plane.send({"x": encode(k)}, metadata={"frame": k})
            if k >= DEPTH:
                total += result.tensors["y"].sum().item()  # your decode
                plane.release_result()
                done.append(time.perf_counter())
        plane.shutdown()
        print(f"depth {DEPTH}: {(done[-1] - done[0]) / (CHUNKS - 1) * 1000:.1f} ms a chunk, total {total}")
    else:
        for chunk in plane.chunks():
            plane.reply({"y": model(chunk.tensors["x"], plane.tp.group)})  # the mesh's group: tp_pg
