"""A loop of one's own in which rank 2 sleeps: before ``join``, or while rank 1 is in ``all_reduce``."""

import os
import sys
import time

import torch
import torch.distributed as dist

from ppwork.ranks import Plan, Stage0Plane, join

WHERE = sys.argv[1]
if WHERE == "join" and os.environ["RANK"] == "2":
    time.sleep(600)
with join(Plan(mesh_size=2, backend="gloo", in_flight_depth=2, chunks=3, timeout_s=4)) as plane:
    if isinstance(plane, Stage0Plane):
        for k in range(2):
            plane.send({"x": torch.full((4,), k)})
        plane.receive_result()
    else:
        for chunk in plane.chunks():
            if plane.rank == 2:
                time.sleep(600)
            dist.all_reduce(chunk.tensors["x"], group=plane.tp.group)
            plane.reply({})
