"""Stages 1 that differ on one mesh rank, for whole runs."""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from toy_stages import Scaler


class OneMoreSum(Scaler):
    """A sum behind a flag that one rank has: the last thing of the run's last chunk."""

    def step(self, tensors, step_index, num_steps):
        result = super().step(tensors, step_index, num_steps)
        self.chunks = getattr(self, "chunks", -1) + 1
        if self.chunks == self.plan.chunks - 1 and self.tp.group_rank == 1:
            self.tp.all_reduce(torch.ones(4))
        return result


class StepsAgain(Scaler):
    """One rank denoises chunk 3 twice."""

    def step(self, tensors, step_index, num_steps):
        if step_index == 0:
            self.chunks = getattr(self, "chunks", -1) + 1
        result = super().step(tensors, step_index, num_steps)
        if self.chunks == 3 and step_index == num_steps - 1 and self.tp.group_rank == 1:
            return self.step(result, step_index, num_steps)
        return result


class Loaded(Scaler):
    """Weights and an environment that depend on the rank."""

    parity_environment = ("TOY_FAST",)

    def replicated(self):
        odd = float(os.environ.get("TOY_WEIGHT", "1"))
        return {"norm": torch.ones(3), "embed": torch.full((2, 2), odd)}


class SumsAlone(Scaler):
    """One rank makes a sum while it is loaded, and the other does not."""

    def __init__(self, context):
        super().__init__(context)
        if context.tp.group_rank == 1:
            context.tp.all_reduce(torch.ones(2))


class ReceivesAlone(Scaler):
    """The leader waits in chunk 3 for a message that the other mesh rank does not send."""

    def step(self, tensors, step_index, num_steps):
        self.chunks = getattr(self, "chunks", -1) + 1
        if self.chunks == 3 and self.tp.group_rank == 0:
            dist.recv(torch.ones(1), 2, group=self.tp.group)
        return super().step(tensors, step_index, num_steps)


class Drifts(Scaler):
    """One rank leaves what it adds to chunk 1, and to chunk 4, to itself."""

    def step(self, tensors, step_index, num_steps):
        result = super().step(tensors, step_index, num_steps)
        self.chunks = getattr(self, "chunks", -1) + 1
        odd = 1e-3 * (self.chunks in (1, 4) and self.tp.group_rank == 1)
        return {**result, "small": result["small"] + odd}


class Holds(Scaler):
    """Counts its chunks; by the plan's option one rank has lost count from a chunk on, and all sum by it."""

    def __init__(self, context):
        super().__init__(context)
        self.counts, self.lost_at = torch.zeros(2, 3), context.plan.options.get("lost_at")
        if context.plan.options.get("too_early"):
            self.tp.compare({"counts": self.counts})

    def step(self, tensors, step_index, num_steps):
        self.counts += 1
        if self.counts[0, 0] == (self.lost_at or 0) + 1 and self.lost_at and self.tp.group_rank == 1:
            self.counts += 1
        self.tp.compare({"seen": torch.arange(4), "counts": self.counts})  # HELD
        share = self.tp.all_reduce(self.counts.clone())[0, 0] / self.tp.size
        result = super().step(tensors, step_index, num_steps)
        return {**result, "small": result["small"] + share}


class Keeps(Scaler):
    """The followers return nothing: the leader's result is the one that is sent."""

    def step(self, tensors, step_index, num_steps):
        result = super().step(tensors, step_index, num_steps)
        return {} if self.tp.group_rank else result


class Reshapes(Scaler):
    """One rank returns a tensor in another shape, from a chunk on."""

    def __init__(self, context):
        super().__init__(context)
        self.chunks, self.at = -1, context.plan.options["at"]

    def step(self, tensors, step_index, num_steps):
        result = super().step(tensors, step_index, num_steps)
        self.chunks += 1
        is_odd = self.chunks >= self.at and self.tp.group_rank == 1
        return {**result, "small": torch.ones(2, 3)} if is_odd else result


ODD_CHUNK = 3
"""Late: past the chunks that are compared by an exchange."""


def helped(all_reduce, rows):
    """Sum in a helper that both ranks call."""
    all_reduce(torch.ones(rows, 64))  # HELPER


def gathered(group, is_odd, how):
    """Gather from both ranks; the odd one has another shape, or as many bytes of another dtype."""
    rows, dtype = 4 if is_odd and how == "gathers" else 8, (torch.bfloat16, torch.float16)
    mine = torch.ones(rows, 64, dtype=dtype[is_odd and how == "misreads"])
    dist.all_gather([torch.empty_like(mine) for _ in range(2)], mine, group=group)  # GATHER


def odd_sums(case, chunk_index, group, all_reduce):
    """Make three sums; in chunk 3 one rank makes the second otherwise, or one more before it, by the case."""
    group_rank = dist.get_rank(group)
    who, _, how = case.partition(" ")
    is_odd = chunk_index == ODD_CHUNK and group_rank == ("leader", "follower").index(who)
    for number in range(3):
        if number == 1 and how in ("gathers", "misreads"):
            gathered(group, is_odd, how)
            continue
        if number == 1 and how == "leaves out":
            if not is_odd:  # not one of torch's own functions: nothing compares it
                functional.all_reduce(torch.ones(8, 64), "sum", group).sum()  # FUNCTIONAL
            gathered(group, is_odd, how)
            continue
        if is_odd and number == 1 and how == "more":
            all_reduce(torch.ones(8, 64))  # MORE
        if how == "helped" and is_odd and number == 1:
            helped(all_reduce, 9)  # HERE
        elif how == "helped":
            helped(all_reduce, 8)  # THERE
        elif not (is_odd and number == 1) or how == "more":
            all_reduce(torch.ones(8, 64))  # SUM
        elif how == "meets all":
            dist.barrier()  # ALL
        elif how != "skips":
            more = {"op": dist.ReduceOp.MAX} if how == "compares" else {}
            all_reduce(torch.ones({"longer": 9, "shorter": 7}.get(how, 8), 64), **more)  # ODD


class OddSums(Scaler):
    """Sums of which one rank makes one otherwise, past the chunks that are compared by an exchange."""

    def step(self, tensors, step_index, num_steps):
        self.chunks = getattr(self, "chunks", -1) + 1
        odd_sums(self.plan.options["case"], self.chunks, self.tp.group, self.tp.all_reduce)
        return {name: tensor.clone() for name, tensor in tensors.items()}


class Swallows(Scaler):
    """Passes over the error of a call that the mesh ranks make otherwise, in a chunk without an exchange."""

    def step(self, tensors, step_index, num_steps):
        self.chunks = getattr(self, "chunks", -1) + 1
        how = dist.ReduceOp.MAX if self.tp.group_rank == 1 else dist.ReduceOp.SUM
        try:
            if self.chunks == 4:
                dist.all_reduce(torch.ones(4), how, group=self.tp.group)
        except Exception:  # noqa: BLE001  the mistake
            self.swallowed = True
        return super().step(tensors, step_index, num_steps)


class SwallowsOther(Scaler):
    """Passes over the refusal of a sum on the default group."""

    def step(self, tensors, step_index, num_steps):
        self.chunks = getattr(self, "chunks", -1) + 1
        try:
            if self.chunks == 1:
                dist.all_reduce(torch.ones(4))
        except Exception:  # noqa: BLE001  the mistake
            self.swallowed = True
        return super().step(tensors, step_index, num_steps)
