"""A loop of one's own in which a mesh rank fails, on three ranks: ``bad_loops.py CASE RUN_DIR``."""

import signal
import sys

import torch
import torch.distributed as dist

from ppwork.ranks import Plan, Stage0Plane, join


def drive(plane):
    for k in range(4):
        plane.send({"x": torch.full((3,), float(k))})
        plane.receive_result()
    plane.shutdown()


def serve(plane, case):
    for chunk in plane.chunks():
        if chunk.ids.chunk_index == 2 and case.startswith(plane.role):
            if case.endswith("raises"):
                raise ValueError("my bug")
            signal.pause()
        dist.all_reduce(chunk.tensors["x"], group=plane.groups["tp_pg"])
        plane.reply({"x": chunk.tensors["x"]}, copy=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    with join(Plan(mesh_size=2, backend="gloo", timeout_s=10), run_dir=sys.argv[2]) as plane:
        if isinstance(plane, Stage0Plane):
            drive(plane)
        else:
            serve(plane, sys.argv[1])
