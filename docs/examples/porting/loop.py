"""The same as ``plain.py``, on a plane: checked, bounded, and a failure has a name.

torchrun --standalone --nproc-per-node 3 loop.py runs/loop
"""

import sys

import torch
import torch.distributed as dist

from ppwork.ranks import Plan, Stage0Plane, join

DIM, CHUNKS = 64, 8


class Mlp:
    def __init__(self, part, parts):
        made = torch.Generator().manual_seed(0)
        up, down = (torch.randn(DIM, DIM, generator=made) / 8 for _ in range(2))
        self.up, self.down = up.chunk(parts, 1)[part], down.chunk(parts, 0)[part]

    def __call__(self, x, group):
        x = torch.relu(x @ self.up) @ self.down
        dist.all_reduce(x, group=group)
        return x


with join(Plan(mesh_size=2, backend="gloo"), run_dir=sys.argv[1]) as plane:
    if isinstance(plane, Stage0Plane):
        for k in range(CHUNKS):
            x = torch.randn(4, DIM, generator=torch.Generator().manual_seed(k))
            plane.send({"x": x}, metadata={"chunk": k, "scale": k + 1})
            result, _ = plane.receive_result()
            print(result.metadata["chunk"], f"{result.tensors['x'].norm().item():.4f}", flush=True)
            plane.release_result()
        plane.shutdown()
    else:
        mlp = Mlp(plane.tp.group_rank, plane.tp.size)
        for chunk in plane.chunks():
            x = mlp(chunk.tensors["x"], plane.tp.group) * chunk.metadata["scale"]
            plane.reply({"x": x}, metadata={"chunk": chunk.metadata["chunk"]})
