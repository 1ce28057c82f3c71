"""A loop whose mesh ranks hold a part of a table each.

With ``shifted`` the last one uses wrong rows from chunk 1 on::

torchrun --standalone --nproc-per-node 3 sharded_loop.py FOLDER [shifted]
"""

from __future__ import annotations

import os
import sys

import torch
import torch.distributed as dist

from ppwork.ranks import MeshPlane, Plan, Stage0Plane, join

CHUNKS, ROWS, WIDTH = 4, 8, 4

folder, fault = sys.argv[1], "".join(sys.argv[2:])
size = int(os.environ["WORLD_SIZE"]) - 1
plan = Plan(mesh_size=size, chunks=CHUNKS, backend="gloo", timeout_s=30, keep_outputs=True)
with join(plan, run_dir=folder) as plane:
    if isinstance(plane, Stage0Plane):
        for k in range(CHUNKS):
            plane.send({"ids": torch.arange(3) + k})
            result, _ = plane.receive_result()
            result.tensors["rows"].zero_()  # they are the loop's: what was kept is a copy
            plane.release_result()
        plane.shutdown()
    elif isinstance(plane, MeshPlane):
        mine, share = plane.groups.rank - 1, ROWS // size
        table = torch.randn(ROWS, WIDTH, generator=torch.Generator().manual_seed(1))
        for chunk in plane.chunks():
            wrong = fault == "shifted" and mine == size - 1 and chunk.ids.chunk_index > 0
            ids = chunk.tensors["ids"] + wrong
            is_mine = (ids // share == mine).unsqueeze(1)
            rows = torch.where(is_mine, table[ids % ROWS], 0.0)
            dist.all_reduce(rows, group=plane.tp.group)
            plane.reply({"rows": rows})
