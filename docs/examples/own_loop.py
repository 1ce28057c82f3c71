"""The control plane in a prototype of your own: no launcher, no stages, your loop.

Run it with plain torchrun::

    torchrun --standalone --nproc-per-node 3 own_loop.py
"""

from __future__ import annotations

import torch

from ppwork.ranks import LeaderPlane, MeshPlane, PipelinePlan, PPAction, PPControlPlane, PPResult, Stage0Plane

PLAN = PipelinePlan(mesh_size=2, backend="gloo", timeout_s=30)


def drive(plane: Stage0Plane) -> None:
    """Rank 0: send four chunks, the third after a hard cut."""
    for k in range(4):
        if k == 3:
            plane.heartbeat()  # the source pauses: a NOOP, which counts as a call and not as a chunk
        plane.send({"x": torch.full((3,), float(k))}, metadata={"note": f"chunk {k}"}, hard_cut=k == 2)
        result, good = plane.receive_result()
        print(result.ids, result.tensors["x"].tolist(), "good" if good else "stale", flush=True)
    plane.shutdown()


def serve(plane: MeshPlane) -> None:
    """Mesh: every rank gets the same envelope; the leader answers."""
    while (envelope := plane.receive()).action is not PPAction.SHUTDOWN:
        if envelope.action is PPAction.NOOP:
            continue
        x = envelope.tensors["x"] * 2  # your generator; its collectives go over plane.groups["tp_pg"]
        ids = plane.computed(observed_calls=1)
        if isinstance(plane, LeaderPlane):
            plane.send_result(PPResult(PPAction.INFER, ids, observed_calls=1, tensors={"x": x}))
    plane.acknowledge()


if __name__ == "__main__":
    with PPControlPlane.join(PLAN) as plane:
        if isinstance(plane, Stage0Plane):
            drive(plane)
        elif isinstance(plane, MeshPlane):
            serve(plane)
