"""Stages in a program of your own, under your own torchrun, with all records kept.

Run it from this folder::

    torchrun --standalone --nproc-per-node 3 prototype.py runs/mine
    ppwork timeline runs/mine
"""

from __future__ import annotations

import argparse

from my_stages import Counter, Scaler

from ppwork.ranks import MeshPlane, Plan, Stage0Plane, join, run_mesh, run_stage0, stage_context


def main() -> None:
    """Be one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", help="new or empty; the same for all ranks")
    parser.add_argument("--chunks", type=int, default=6)
    options = parser.parse_args()
    plan = Plan(mesh_size=2, chunks=options.chunks, in_flight_depth=2, backend="gloo", timeout_s=30)
    with join(plan, run_dir=options.run_dir) as plane:
        context = stage_context(plane)
        if isinstance(plane, Stage0Plane):
            print(run_stage0(plane, Counter(context)), flush=True)
        elif isinstance(plane, MeshPlane):
            run_mesh(plane, Scaler(context))


if __name__ == "__main__":
    main()
