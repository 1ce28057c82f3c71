"""Stages that take a chosen time, carry a chosen load and compute nothing: to measure the pipeline itself.

Options of the plan: ``encode_ms``, ``decode_ms``, ``stage1_ms``, ``payload_mb`` (in units of 1 << 20 bytes),
``result_mb`` (of it, what comes back; default all), ``jitter`` (relative, by seed), ``tp_sums`` (sums of one
element over the mesh in each step), ``cache`` (the generator counts the chunks since its last reset, and the
count comes back as the figure ``age``). On the CPU a stage sleeps, which leaves the cores to the transport.
On CUDA it launches a kernel of that length on its stream, and what follows there waits for it.
"""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Mapping

import torch

from ppwork.plan import Plan
from ppwork.stage import Emission, StageContext, Tensors

MIB = 1 << 20
CALIBRATION_CYCLES = 20_000_000
"""About 10 ms."""


@functools.cache
def cycles_per_ms(device: torch.device) -> float:
    """Measure, once per process, how many cycles of a waiting kernel take a millisecond."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    with torch.cuda.device(device):
        torch.cuda._sleep(CALIBRATION_CYCLES)  # the first launch costs more, and wakes the clock
        begin.record()
        torch.cuda._sleep(CALIBRATION_CYCLES)
        end.record()
        end.synchronize()
    took_ms: float = begin.elapsed_time(end)
    return CALIBRATION_CYCLES / took_ms


class Timer:
    """Takes a chosen time, with seeded jitter: of this thread on the CPU, of the current stream on CUDA."""

    def __init__(self, plan: Plan, option: str, device: torch.device) -> None:
        self._cycles_per_ms = cycles_per_ms(device) if device.type == "cuda" else 0.0
        self._ms = float(plan.options.get(option, 0.0))
        self._jitter = float(plan.options.get("jitter", 0.0))
        self._random = random.Random(f"{plan.seed} {option}")  # noqa: S311  not for secrets

    def take(self) -> None:
        """Sleep the chosen time, or make the stream do so and return at once."""
        self.spend(self.draw())

    def draw(self) -> float:
        """Return the next time, in milliseconds."""
        return max(0.0, self._ms * (1.0 + self._random.uniform(-self._jitter, self._jitter)))

    def spend(self, ms: float) -> None:
        """Sleep as long, or make the stream do so and return at once."""
        if self._cycles_per_ms:
            torch.cuda._sleep(int(ms * self._cycles_per_ms))
        else:
            time.sleep(ms / 1000.0)


def elements_of(plan: Plan, option: str) -> int:
    """Return how many float32 fill as many MiB; one at least, for the chunk index."""
    return max(1, int(float(plan.options.get(option, 0.0)) * MIB) // 4)


class SyntheticSource:
    """Stage 0: sleeps, and sends ``payload_mb`` whose first element is the chunk index."""

    def __init__(self, context: StageContext) -> None:
        plan = context.plan
        self._encode, self._decode = (
            Timer(plan, name, context.device) for name in ("encode_ms", "decode_ms")
        )
        self._elements = elements_of(plan, "payload_mb")
        # One buffer per chunk that can be in flight: what was handed over belongs to the transport.
        count = plan.in_flight_depth + 1
        self._buffers = [torch.zeros(self._elements, device=context.device) for _ in range(count)]

    def encode(self, chunk_index: int) -> Tensors:
        """Sleep, and return the payload: ``[elements]`` float32 on the stage's device."""
        self._encode.take()
        payload = self._buffers[chunk_index % len(self._buffers)]
        payload[0] = float(chunk_index)
        return {"payload": payload}

    def context_frames(self, chunk_index: int) -> Tensors:
        """Return one element: there is no past to rebuild."""
        return {"context.index": torch.tensor([float(chunk_index)])}

    def decode(self, chunk_index: int, tensors: Tensors) -> Emission:
        """Sleep, and emit the index that came back: ``[1]`` float32."""
        self._decode.take()
        output = tensors["payload"][:1].cpu()
        if int(output.item()) != chunk_index:
            raise ValueError(f"chunk {chunk_index} came back as {output.item():g}")
        return Emission(output, {"age": tensors["age"].item()} if "age" in tensors else {})

    def finish(self) -> Mapping[str, object]:
        """Nothing was kept."""
        return {}


class SyntheticGenerator:
    """Stage 1: sleeps on every mesh rank and returns what it got, or its first ``result_mb``."""

    def __init__(self, context: StageContext) -> None:
        plan = context.plan
        self._timer = Timer(plan, "stage1_ms", context.device)
        self._elements = elements_of(plan, "result_mb" if "result_mb" in plan.options else "payload_mb")
        self._tp, self._sums = context.tp, int(plan.options.get("tp_sums", 0))
        self._counts, self._age = bool(plan.options.get("cache", False)), 0

    def reset_cache(self) -> None:
        """Begin to count anew: the count is all the cache there is."""
        self._age = 0

    def recompute(self, context_frames: Tensors) -> None:
        """Nothing: the count needs no past frames."""

    def step(self, tensors: Tensors, step_index: int, num_steps: int) -> Tensors:
        """Sleep in the last step, in equal parts around the sums, as a model computes around its own.

        Returns:
            ``[elements]`` float32, a view of what came, and the age if asked.
        """
        payload, is_last = tensors["payload"], step_index == num_steps - 1
        part_ms = self._timer.draw() / (self._sums + 1) if is_last else 0.0
        for _ in range(self._sums):
            self._timer.spend(part_ms)
            self._tp.all_reduce(torch.ones(1, device=payload.device))
        if not is_last:
            return tensors
        self._timer.spend(part_ms)
        self._age += 1
        age = {"age": torch.tensor([float(self._age)], device=payload.device)} if self._counts else {}
        return {"payload": payload[: self._elements], **age}
