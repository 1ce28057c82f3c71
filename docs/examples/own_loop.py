"""The control plane in a prototype of your own: no launcher, no stages, your loop.

Run it with plain torchrun::

    torchrun --standalone --nproc-per-node 3 own_loop.py
"""

from __future__ import annotations

import torch

from ppwork.ranks import MeshPlane, PipelinePlan, PPControlPlane, Stage0Plane

PLAN = PipelinePlan(mesh_size=2, backend="gloo", timeout_s=30)


def drive(plane: Stage0Plane) -> None:
    """Rank 0: send four chunks, the third after a hard cut."""
    for k in range(4):
        if k == 3:
            plane.heartbeat()  # the source pauses: a NOOP, which counts as a call and not as a chunk
        plane.send({"x": torch.full((3,), float(k))}, metadata={"note": f"chunk {k}"}, hard_cut=k == 2)
        result, good = plane.receive_result()
        said = f"{result.metadata['note']}, {'good' if good else 'stale'}"
        print(result.ids, result.tensors["x"].tolist(), said, flush=True)
    plane.shutdown()


def serve(plane: MeshPlane) -> None:
    """Mesh: every rank gets the same chunk and calls ``reply``; what the leader passes is sent."""
    for chunk in plane.chunks():  # heartbeats are passed over, the end is acknowledged
        x = chunk.tensors["x"] * 2  # your generator; its collectives go over plane.groups["tp_pg"]
        plane.reply({"x": x}, metadata={"note": chunk.metadata["note"] + ", doubled"})


if __name__ == "__main__":
    with PPControlPlane.join(PLAN) as plane:
        if isinstance(plane, Stage0Plane):
            drive(plane)
        elif isinstance(plane, MeshPlane):
            serve(plane)
