"""A mesh that has received the next chunk before it answers one: it can copy that to its device meanwhile.

Run it with plain torchrun::

    torchrun --standalone --nproc-per-node 3 late_answers.py runs/late
"""

import sys
from collections import deque

import torch

from ppwork.ranks import MeshPlane, Plan, PPAction, PPEnvelope, Stage0Plane, join

CHUNKS, DEPTH = 6, 2


def drive(plane: Stage0Plane) -> None:
    """Rank 0: two chunks on their way; a mesh that answers late needs the next one to answer."""
    for k in range(CHUNKS + DEPTH):
        if k >= DEPTH:
            result, _ = plane.receive_result()
            print("answer", result.tensors["x"].item(), flush=True)
            plane.release_result()
        if k < CHUNKS:
            plane.send({"x": torch.tensor([float(k)])})
        elif k == CHUNKS:
            plane.heartbeat()  # no further chunk comes: the mesh may answer the last ones
    plane.shutdown()


def serve(plane: MeshPlane) -> None:
    """The mesh: answer the oldest chunk when the next message is here."""
    pending: deque[PPEnvelope] = deque()
    while (message := plane.receive()).action is not PPAction.SHUTDOWN:
        if message.action is PPAction.INFER:
            pending.append(message)
        while pending and (len(pending) == DEPTH or message.action is PPAction.NOOP):
            chunk = pending.popleft()
            plane.reply({"x": chunk.tensors["x"] * 2})  # of the oldest chunk, on every mesh rank
    plane.acknowledge()


if __name__ == "__main__":
    with join(Plan(mesh_size=2, in_flight_depth=DEPTH), run_dir=sys.argv[1]) as plane:
        if isinstance(plane, Stage0Plane):
            drive(plane)
        elif isinstance(plane, MeshPlane):
            serve(plane)
