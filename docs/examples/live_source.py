"""A live source that decides while the stream runs: pauses, prompts, cuts, a flush, a fast first frame.

Somebody types while the mesh computes: here a list stands in for him. Run it with plain torchrun::

    torchrun --standalone --nproc-per-node 3 live_source.py
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch

from ppwork.ranks import (
    NOT_YET,
    Chunk,
    MeshPlane,
    Plan,
    Result,
    Stage0Plane,
    StageContext,
    Tensors,
    join,
    run_mesh,
    run_stage0,
    stage_context,
)

Said = Mapping[str, Any]
TYPED = {0: "a cat", 3: "a dog", 5: "no, a bird!"}
"""What is typed before which chunk; with a sign of impatience what is on its way is not wanted any more."""
CHUNKS = 7


class Camera:
    """Rank 0: a frame now and then, and the prompt that holds for it."""

    def __init__(self, context: StageContext) -> None:
        self.prompt = ""
        self.next_s = time.monotonic()
        self.shown: list[str] = []

    def encode(self, chunk_index: int) -> Chunk | object | None:
        if chunk_index == CHUNKS:
            return None  # the stream ends when the source says so, not when the plan does
        if time.monotonic() < self.next_s:
            time.sleep(0.002)
            return NOT_YET  # rank 0 decodes meanwhile, and keeps the link alive
        self.next_s = time.monotonic() + 0.02
        typed = TYPED.get(chunk_index)
        self.prompt = typed or self.prompt
        return Chunk(
            {"frame": torch.full((3,), float(chunk_index))},
            metadata={"prompt": self.prompt},
            hard_cut=typed is not None and chunk_index > 0,  # a new scene: the cache starts anew
            flush=self.prompt.endswith("!") and typed is not None,
            steps=1 if typed else 2,  # something to see at once, then better
        )

    def decode(self, chunk_index: int, tensors: Tensors, metadata: Said, result_metadata: Said) -> None:
        age, steps = result_metadata["frames in scene"], result_metadata["steps"]
        line = f"chunk {chunk_index}: {metadata['prompt']}, frame {age} of its scene, {steps} steps"
        self.shown.append(line)
        print(line, flush=True)

    def finish(self) -> dict[str, object]:
        return {"shown": self.shown}


class Painter:
    """Mesh: paints by the prompt, and says how old its scene is."""

    def __init__(self, context: StageContext) -> None:
        self.tp = context.tp
        self.frames = 0

    def reset_cache(self) -> None:
        self.frames = 0

    def step(self, tensors: Tensors, step_index: int, num_steps: int, metadata: Said) -> Result:
        self.frames += step_index == 0
        share = tensors["frame"] * len(metadata["prompt"]) / self.tp.size
        said = {"frames in scene": self.frames, "steps": num_steps}
        return Result({"frame": self.tp.all_reduce(share)}, said)


if __name__ == "__main__":
    plan = Plan(mesh_size=2, in_flight_depth=3, steps=2, backend="gloo", timeout_s=30)
    with join(plan) as plane:
        if isinstance(plane, Stage0Plane):
            run_stage0(plane, Camera(stage_context(plane)))
        elif isinstance(plane, MeshPlane):
            run_mesh(plane, Painter(stage_context(plane)))
