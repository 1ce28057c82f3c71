"""A model with a state: sequences one after another, a state that starts anew at each, and what rank 0 keeps.

The hidden units are split over the mesh, and so is the state. Mesh ranks make one sum a chunk::

    torchrun --standalone --nproc-per-node 3 recurrent.py runs/mesh-of-2
    torchrun --standalone --nproc-per-node 2 recurrent.py runs/mesh-of-1    # the same numbers
"""

import os
import sys
from collections import deque

import torch
import torch.distributed as dist

from ppwork.ranks import MeshPlane, Plan, Stage0Plane, join

SIZE, HIDDEN, DEPTH = 8, 16, 2
LENGTHS = {"north": 5, "south": 3, "west": 6}


class Network:
    """A recurrent network of one layer; each mesh rank has some of the hidden units and their state."""

    def __init__(self, part: int, parts: int, group: dist.ProcessGroup) -> None:
        made = torch.Generator().manual_seed(0)
        taken, kept, given = (torch.randn(HIDDEN, n, generator=made) / 4 for n in (SIZE, 1, SIZE))
        self.taken, self.kept, self.given = (w.chunk(parts)[part] for w in (taken, kept, given))
        self.group = group
        self.reset()

    def reset(self) -> None:
        self.state = torch.zeros(len(self.kept))

    def __call__(self, frame: torch.Tensor) -> torch.Tensor:
        self.state = torch.tanh(self.taken @ frame + self.kept[:, 0] * self.state)
        forecast = self.state @ self.given
        dist.all_reduce(forecast, group=self.group)  # each rank knows its own hidden units only
        return forecast


def drive(plane: Stage0Plane) -> None:
    """Rank 0: what belongs to a chunk waits here for its result, which comes in the same order."""
    made = torch.Generator().manual_seed(1)
    frames = [(name, n, torch.randn(SIZE, generator=made)) for name in LENGTHS for n in range(LENGTHS[name])]
    kept: deque[tuple[str, torch.Tensor]] = deque()
    errors: dict[str, list[float]] = {name: [] for name in LENGTHS}
    for k in range(len(frames) + DEPTH):
        if k >= DEPTH:
            result, _ = plane.receive_result()
            name, frame = kept.popleft()
            errors[name].append((result.tensors["forecast"] - frame).abs().mean().item())
            plane.release_result()
        if k < len(frames):
            name, n, frame = frames[k]
            plane.send({"frame": frame}, metadata={"sequence": name}, hard_cut=n == 0 and k > 0)
            kept.append((name, frame))
    plane.shutdown()
    for name, each in errors.items():
        print(f"{name} {len(each)} {sum(each) / len(each):.6f}", flush=True)


def serve(plane: MeshPlane) -> None:
    """The mesh: a new network for chunk 0, and after it a new state wherever rank 0 cuts."""
    network = Network(plane.tp.group_rank, plane.tp.size, plane.tp.group)
    for chunk in plane.chunks():
        if chunk.plan.reset_cache:
            network.reset()
        plane.reply({"forecast": network(chunk.tensors["frame"])})


if __name__ == "__main__":
    plan = Plan(mesh_size=int(os.environ["WORLD_SIZE"]) - 1, in_flight_depth=DEPTH)
    with join(plan, run_dir=sys.argv[1]) as plane:
        if isinstance(plane, Stage0Plane):
            drive(plane)
        elif isinstance(plane, MeshPlane):
            serve(plane)
