"""The Llama of ``llama.py``, split once and loaded through two sessions, on a mesh of the program's own.

The mesh is made once, by ``init_process_group`` and ``DeviceMesh``, and handed to each ``join``: DTensors
live on it, so it must outlive the sessions. The words that come out are those of the whole model in one
process. Run it with plain torchrun::

    torchrun --standalone --nproc-per-node 3 llama_dtensor.py
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from llama import LENGTH, PROMPTS, SPLIT, Blocks, Words, whole
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor.parallel import parallelize_module

from ppwork.ranks import MeshPlane, Plan, Stage0Plane, join, run_mesh, run_stage0, stage_context


def in_one_process() -> list[list[int]]:
    """Return what the whole model says, without any cache."""
    embedding, blocks, head = whole()
    said = []
    for prompt in PROMPTS:
        words = list(prompt)
        for _ in range(LENGTH):
            x = embedding(torch.tensor(words))
            for block in blocks:
                x, _ = block(x)
            words.append(int(head(x[-1]).argmax()))
        said.append(words[len(prompt) :])
    return said


def main() -> None:
    """Be one rank, in two sessions with one model."""
    dist.init_process_group("gloo")
    mesh = DeviceMesh("cpu", [1, 2], mesh_dim_names=("tp",))  # all ranks make it, also rank 0
    _, blocks, _ = whole()
    if dist.get_rank() > 0:
        for block in blocks:
            parallelize_module(block, mesh, SPLIT)
    generator = Blocks(blocks)
    expected = in_one_process() if dist.get_rank() == 0 else []
    for session in range(2):
        plan = Plan(mesh_size=2, in_flight_depth=2, backend="gloo", timeout_s=60)
        with join(plan, mesh=mesh) as plane:
            if isinstance(plane, Stage0Plane):
                said = run_stage0(plane, Words(stage_context(plane)))["said"]
                verdict = "as in one process" if said == expected else expected
                print(f"session {session}: {said}", verdict, flush=True)
            elif isinstance(plane, MeshPlane):
                run_mesh(plane, generator)
    dist.destroy_process_group()


if __name__ == "__main__":
    with torch.no_grad():
        main()
