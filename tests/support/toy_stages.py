"""Stages whose right answer is known in advance, and their broken sisters."""

from __future__ import annotations

import subprocess
import sys
import time

import torch

from ppwork.stage import NOT_YET, Emission

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "float8_e4m3fn",
    "float8_e4m3fnuz",
    "float8_e5m2",
    "float8_e5m2fnuz",
    "float8_e8m0fnu",
    "uint16",
    "int16",
    "float16",
    "bfloat16",
    "uint32",
    "int32",
    "float32",
    "uint64",
    "int64",
    "float64",
    "complex32",
    "complex64",
    "complex128",
]


class Counter:
    """Stage 0: chunk k is a small vector of k and a large one that fits no frame."""

    def __init__(self, context):
        self.plan = context.plan
        self.outputs = []

    def encode(self, chunk_index):
        if self.plan.options.get("end_at") == chunk_index:
            return None
        large = torch.arange(self.plan.options.get("large", 5000), dtype=torch.float32) + chunk_index
        return {"small": torch.full((4,), float(chunk_index)), "large": large}

    def context_frames(self, chunk_index):
        return {"context.small": torch.full((2,), float(chunk_index - 1))}

    def decode(self, chunk_index, tensors):
        output = torch.cat([tensors["small"], tensors["large"][:3]])
        self.outputs.append([round(x, 4) for x in tensors["small"].tolist()])
        return Emission(output, {"mean": output.mean().item()})

    def finish(self):
        return {"outputs": self.outputs}


class Scaler:
    """Stage 1: 10 k, summed over the mesh, plus 100 for each chunk since the last reset."""

    def __init__(self, context):
        self.tp, self.plan = context.tp, context.plan
        self.seen = 0.0

    def reset_cache(self):
        self.seen = 0.0

    def recompute(self, context_frames):
        self.seen = float(context_frames["context.small"].mean()) + 0.5

    def step(self, tensors, step_index, num_steps):
        if step_index == num_steps - 1:
            self.seen += 1.0
        share = tensors["small"] * (10.0 if step_index == 0 else 1.0) / self.tp.size
        return {
            "small": self.tp.all_reduce(share.clone()) + (100.0 * self.seen if step_index == 0 else 0.0),
            "large": tensors["large"] * 2,
        }


class AllDtypes(Counter):
    """Stage 0 that sends random bytes in every dtype, shapes that hurt, and compares what comes back."""

    def __init__(self, context):
        super().__init__(context)
        self.sent = {}

    def encode(self, chunk_index):
        generator = torch.Generator().manual_seed(chunk_index)
        self.sent = {}
        for name in DTYPES:
            dtype = getattr(torch, name)
            count = 3000 if chunk_index % 2 else 6
            item = torch.empty((), dtype=dtype).element_size()
            raw = torch.randint(0, 2 if name == "bool" else 256, (count * item,), generator=generator)
            flat = raw.to(torch.uint8).view(dtype)
            self.sent[name] = flat.reshape(2, -1)
        self.sent |= {"scalar": torch.tensor(7.0), "empty": torch.empty(0, 3), "one": torch.ones(1, 1, 1)}
        return self.sent

    def decode(self, chunk_index, tensors):
        same = [name for name, tensor in tensors.items() if self._equal(name, tensor)]
        self.outputs.append(len(same))
        assert list(tensors) == list(self.sent)
        return Emission(torch.tensor([len(same)]))

    def _equal(self, name, tensor):
        sent = self.sent[name]
        if tensor.shape != sent.shape or tensor.dtype != sent.dtype:
            return False
        return raw_bytes(tensor) == raw_bytes(sent)


def raw_bytes(tensor):
    flat = tensor.reshape(-1)
    flat = torch.view_as_real(flat).reshape(-1) if flat.dtype.is_complex else flat
    return bytes(flat.view(torch.uint8).numpy())


class Echo(Scaler):
    """Stage 1 that returns what it got."""

    def step(self, tensors, step_index, num_steps):
        return tensors


class Slow(Scaler):
    """Stage 1 that takes its time and says that it is at it."""

    def step(self, tensors, step_index, num_steps):
        time.sleep(float(self.plan.options["step_s"]))
        return super().step(tensors, step_index, num_steps)


class StandsAlone(Scaler):
    """Stage 1 that stands still where one process is the whole mesh, as in the reference of a run."""

    def step(self, tensors, step_index, num_steps):
        if self.tp.size == 1:
            time.sleep(60)
        return super().step(tensors, step_index, num_steps)


class Parent(Scaler):
    """Stage 1 with a process of its own beside it, as a loader of data has one."""

    def __init__(self, context):
        super().__init__(context)
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])

    def step(self, tensors, step_index, num_steps):
        time.sleep(0.05)
        return super().step(tensors, step_index, num_steps)


class RaisesOn(Scaler):
    """Stage 1 that raises on one mesh rank at chunk 2."""

    def step(self, tensors, step_index, num_steps):
        self.chunks = getattr(self, "chunks", -1) + 1
        if self.chunks == 2 and self.tp.group_rank == self.plan.options["group_rank"]:
            raise ZeroDivisionError("the stage's own bug")
        return super().step(tensors, step_index, num_steps)


class ConstructorRaises(Scaler):
    def __init__(self, context):
        super().__init__(context)
        if self.tp.group_rank == self.plan.options.get("group_rank", 1):
            raise FileNotFoundError("weights.pt")


class EncodeRaisesAtOnce(Counter):
    def encode(self, chunk_index):
        raise OSError("camera unplugged")


class ResultCannotTravel(Scaler):
    def step(self, tensors, step_index, num_steps):
        return {"small": tensors["small"].expand(4, 4).t()}


class DecodeRaises(Counter):
    def decode(self, chunk_index, tensors):
        if chunk_index == 1:
            raise ValueError("cannot write")
        return super().decode(chunk_index, tensors)


class NotAStage:
    def encode(self, chunk_index):
        return {}


class DependsOnRank(Scaler):
    """Stage 1 that is wrong in a mesh of two and right in one process."""

    def step(self, tensors, step_index, num_steps):
        result = super().step(tensors, step_index, num_steps)
        return {**result, "small": result["small"] + self.tp.size - 1}


class DriftsInAMesh(Scaler):
    """Stage 1 that is a little wrong in a mesh of two, and from call to call by more."""

    drift = 0.0

    def step(self, tensors, step_index, num_steps):
        result = super().step(tensors, step_index, num_steps)
        self.drift += 0.0 if self.tp.size == 1 else 1.0
        return {**result, "small": result["small"] + self.drift}


class KeepsAtACut(Scaler):
    """Stage 1 that does not start its cache anew in a mesh of two."""

    def reset_cache(self):
        self.seen = self.seen if self.tp.size == 2 else 0.0


class OddBeside(Scaler):
    """Stage 1 whose second tensor is wrong in a mesh of two from chunk 2 on; stage 0 does not emit it."""

    seen = 0

    def step(self, tensors, step_index, num_steps):
        beside = torch.full((3,), 1e4 + (7.0 if self.tp.size > 1 and self.seen > 1 else 0.1 * self.tp.size))
        self.seen += 1
        return {**super().step(tensors, step_index, num_steps), "beside": beside}


class NaNsInAMesh(Scaler):
    """Stage 1 whose result is no number in a mesh of two and right in one process."""

    def step(self, tensors, step_index, num_steps):
        result = super().step(tensors, step_index, num_steps)
        return result if self.tp.size == 1 else {**result, "small": result["small"] * float("nan")}


class Pauses(Counter):
    """Stage 0 with a live source that has nothing for ``pause_s`` before chunk ``pause_at``."""

    until = 0.0

    def encode(self, chunk_index):
        if chunk_index == self.plan.options["pause_at"]:
            self.until = self.until or time.monotonic() + self.plan.options["pause_s"]
            if time.monotonic() < self.until:
                time.sleep(self.plan.options["patience_s"])
                return NOT_YET
        return super().encode(chunk_index)
