"""The control plane in a prototype of your own: no launcher, no stages, your loop, and two chunks in flight.

Run it with plain torchrun; with a folder, ``ppwork timeline runs/mine`` draws it afterwards::

    torchrun --standalone --nproc-per-node 3 own_loop.py [runs/mine]
"""

from __future__ import annotations

import sys

import torch

from ppwork.ranks import MeshPlane, Plan, Stage0Plane, join

DEPTH, CHUNKS = 2, 6
PLAN = Plan(mesh_size=2, backend="gloo", timeout_s=30, in_flight_depth=DEPTH, chunks=CHUNKS)


def drive(plane: Stage0Plane) -> None:
    """Rank 0: chunk k+2 leaves before chunk k is decoded, so that the mesh never waits for a decode."""
    for k in range(DEPTH):
        encode(plane, k)
    for k in range(CHUNKS):
        result, good = plane.receive_result()  # in order; not good: a flush has made it stale
        if k + DEPTH < CHUNKS:
            encode(plane, k + DEPTH)
        if good:  # your decode; a stale result has no tensors
            print(result.ids, result.tensors["x"].tolist(), result.metadata["note"], flush=True)
        plane.release_result()  # decoded: the chunk counts as emitted now
        if k == 3:
            plane.heartbeat()  # a source that pauses: a NOOP, which counts as a call and not as a chunk
    plane.shutdown()


def encode(plane: Stage0Plane, k: int) -> None:
    """Make chunk k and send it; the fourth begins anew, after a hard cut."""
    plane.send({"x": torch.full((3,), float(k))}, metadata={"note": f"chunk {k}"}, hard_cut=k == 3)


def serve(plane: MeshPlane) -> None:
    """Mesh: every rank gets the same chunk and calls ``reply``; what the leader passes is sent."""
    seen = 0  # your cache: here, how many chunks it has seen since the last cut
    for chunk in plane.chunks():  # heartbeats are passed over, the end is acknowledged
        seen = 1 if chunk.plan.reset_cache else seen + 1
        plane.compare({"seen": torch.tensor(seen)})  # an error if another mesh rank has counted otherwise
        x = chunk.tensors["x"] * 2  # your generator; its collectives go over plane.tp.group
        plane.reply({"x": x}, metadata={"note": f"{chunk.metadata['note']}, doubled, {seen} since the cut"})


if __name__ == "__main__":
    with join(PLAN, run_dir=sys.argv[1] if sys.argv[1:] else None) as plane:
        if isinstance(plane, Stage0Plane):
            drive(plane)
        elif isinstance(plane, MeshPlane):
            serve(plane)
