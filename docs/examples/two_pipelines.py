"""Two pipelines in one job that has a default group of its own: ranks 0..2, and ranks 3..5.

Run it with plain torchrun::

    torchrun --standalone --nproc-per-node 6 two_pipelines.py runs/two
    ppwork timeline runs/two/first
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from my_stages import Counter, Scaler

from ppwork.ranks import MeshPlane, Plan, Stage0Plane, join, run_mesh, run_stage0, stage_context

PIPELINES = {"first": [0, 1, 2], "second": [3, 4, 5]}


def main(folder: Path) -> None:
    """Be one rank of the job, and of one of its pipelines."""
    dist.init_process_group("gloo")  # the job's own: nothing of ppwork touches it
    name, ranks = next((name, ranks) for name, ranks in PIPELINES.items() if dist.get_rank() in ranks)
    plan = Plan(mesh_size=2, chunks=4, in_flight_depth=2, backend="gloo", timeout_s=30)
    total = torch.zeros(1)
    # Each pipeline has a folder of its own; in it, and in errors, its ranks count from 0.
    with join(plan, ranks=ranks, run_dir=folder / name) as plane:
        context = stage_context(plane)
        if isinstance(plane, Stage0Plane):
            total += run_stage0(plane, Counter(context))["total"]
        elif isinstance(plane, MeshPlane):
            run_mesh(plane, Scaler(context))
    dist.all_reduce(total)
    if dist.get_rank() == 0:
        print("both pipelines:", total.item(), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
