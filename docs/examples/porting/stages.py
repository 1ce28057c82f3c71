"""The same as ``plain.py``, as stages: overlap, guards, records and ``--verify`` come with them.

ppwork run --stage0 stages:Ends --stage1 stages:Mlp --chunks 8 --depth 2
"""

import torch

from ppwork.stage import Chunk

DIM = 64


class Ends:
    def __init__(self, context):
        pass

    def encode(self, k):
        x = torch.randn(4, DIM, generator=torch.Generator().manual_seed(k))
        return Chunk({"x": x}, metadata={"scale": k + 1})

    def decode(self, k, tensors):
        print(k, f"{tensors['x'].norm().item():.4f}", flush=True)


class Mlp:
    def __init__(self, context):
        self.tp, made = context.tp, torch.Generator().manual_seed(0)
        up, down = (torch.randn(DIM, DIM, generator=made) / 8 for _ in range(2))
        self.up = up.chunk(self.tp.size, 1)[self.tp.group_rank]
        self.down = down.chunk(self.tp.size, 0)[self.tp.group_rank]

    def step(self, tensors, step_index, num_steps, metadata):
        x = torch.relu(tensors["x"] @ self.up) @ self.down
        return {"x": self.tp.all_reduce(x) * metadata["scale"]}
