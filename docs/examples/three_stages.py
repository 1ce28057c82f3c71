"""Three stages in one job: encoder, generator on a mesh of two, decoder. Two pipelines, chained at rank 1.

    first     rank 0: encoder             ->  ranks 1 and 2: generator
    second    rank 1: leader of the first ->  rank 3: decoder

Each bounds what is on its way, so all three stages work at once, and a slow one holds the others back. Run it
with plain torchrun::

    torchrun --standalone --nproc-per-node 4 three_stages.py runs/three
    ppwork timeline runs/three/first --compare runs/three/second
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist

from ppwork.ranks import (
    Chunk,
    MeshPlane,
    Plan,
    Stage0Plane,
    StageContext,
    Tensors,
    join,
    run_mesh,
    run_stage0,
    stage_context,
)

FIRST, SECOND, LEADER = [0, 1, 2], [1, 3], 1
CHUNKS, DEPTH = 6, 2
Said = Mapping[str, Any]


class Encoder:
    """Rank 0: a prompt becomes numbers."""

    def __init__(self, context: StageContext) -> None:
        pass

    def encode(self, chunk_index: int) -> Chunk:
        prompt = "la" * (chunk_index + 1)
        return Chunk({"x": torch.tensor([float(ord(letter)) for letter in prompt])}, {"prompt": prompt})

    def decode(self, chunk_index: int, tensors: Tensors) -> None:
        """Know that the generator is done with this chunk; what it made went the other way."""


class Onward:
    """The leader's end of the second pipeline, where it is stage 0."""

    def __init__(self, plane: Stage0Plane) -> None:
        self.plane, self.under_way = plane, 0

    def send(self, tensors: Tensors, metadata: Said) -> None:
        """Hand a chunk to the decoder; wait only if it is a whole depth behind."""
        if self.under_way == DEPTH:
            self._take()
        self.plane.send(tensors, metadata=metadata)
        self.under_way += 1

    def end(self) -> None:
        """Wait for what is under way, and say that nothing comes any more."""
        while self.under_way:
            self._take()
        self.plane.shutdown()

    def _take(self) -> None:
        self.plane.receive_result()
        self.plane.release_result()
        self.under_way -= 1


class Generator:
    """Ranks 1 and 2: all of it on both, the way on from the leader alone."""

    def __init__(self, context: StageContext, onward: Onward | None) -> None:
        self.tp, self.onward = context.tp, onward

    def step(self, tensors: Tensors, step_index: int, num_steps: int, metadata: Said) -> Tensors:
        x = self.tp.all_reduce((tensors["x"] + 1) / self.tp.size)
        if self.onward is not None:
            self.onward.send({"x": x}, metadata)
        return {}


class Decoder:
    """Rank 3: numbers become text again. What comes out of the job comes out here."""

    def __init__(self, context: StageContext) -> None:
        pass

    def step(self, tensors: Tensors, step_index: int, num_steps: int, metadata: Said) -> Tensors:
        text = "".join(chr(round(number)) for number in tensors["x"].tolist())
        print(f"{metadata['prompt']} -> {text}", flush=True)
        return {}


def main(folder: Path) -> None:
    """Be one rank of the job."""
    dist.init_process_group("gloo")  # so that rank 1 can be in two pipelines at once
    rank = dist.get_rank()
    first = Plan(mesh_size=2, chunks=CHUNKS, in_flight_depth=DEPTH, backend="gloo", timeout_s=30)
    second = Plan(mesh_size=1, in_flight_depth=DEPTH, backend="gloo", timeout_s=30)
    if rank == LEADER:
        with (
            join(first, ranks=FIRST, run_dir=folder / "first") as mesh,
            join(second, ranks=SECOND, run_dir=folder / "second") as stage0,
        ):
            onward = Onward(cast(Stage0Plane, stage0))
            run_mesh(cast(MeshPlane, mesh), Generator(stage_context(mesh), onward))
            onward.end()
    else:
        name, plan, ranks = ("first", first, FIRST) if rank in FIRST else ("second", second, SECOND)
        with join(plan, ranks=ranks, run_dir=folder / name) as plane:
            context = stage_context(plane)
            if isinstance(plane, Stage0Plane):
                run_stage0(plane, Encoder(context))
            elif isinstance(plane, MeshPlane):
                run_mesh(plane, Generator(context, None) if rank in FIRST else Decoder(context))
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
