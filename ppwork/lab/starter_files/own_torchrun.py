"""The same two stages in a program of your own, under your own torchrun.

Run it in this folder::

    torchrun --standalone --nproc-per-node 3 own_torchrun.py runs/mine
    ppwork timeline runs/mine
"""

from __future__ import annotations

import argparse

from stages import Block, Source

from ppwork.ranks import MeshPlane, Plan, Stage0Plane, join, run_mesh, run_stage0, stage_context


def main() -> None:
    """Be one rank."""
    parser = argparse.ArgumentParser()
    parser.add_argument("run_dir", help="new or empty; the same for all ranks")
    parser.add_argument("--chunks", type=int, default=8)
    parser.add_argument("--mesh-size", type=int, default=2)
    options = parser.parse_args()
    plan = Plan(mesh_size=options.mesh_size, chunks=options.chunks, in_flight_depth=2, timeout_s=30)
    with join(plan, run_dir=options.run_dir) as plane:
        context = stage_context(plane)
        if isinstance(plane, Stage0Plane):
            print(run_stage0(plane, Source(context)), flush=True)
        elif isinstance(plane, MeshPlane):
            run_mesh(plane, Block(context))


if __name__ == "__main__":
    main()
