"""Stages as an adopter writes them: a source that ends by itself, logs, metrics, figures, options."""

from __future__ import annotations

import logging

import torch

from ppwork.stage import Emission

log = logging.getLogger("adopter.stages")


class Words:
    """Ends after as many chunks as its options say."""

    def __init__(self, context):
        self.ends = context.plan.options["source"]["ends"]
        self.scales = context.plan.options["scales"]
        self.offset = context.plan.options.get("offset", 0.0)

    def encode(self, chunk_index):
        if chunk_index == self.ends:
            return None
        log.info("read chunk %d", chunk_index)
        return {"x": torch.full((3,), self.scales[chunk_index % 2] + self.offset)}

    def decode(self, chunk_index, tensors):
        logging.warning("said without a name")  # noqa: LOG015  what an adopter does first
        return Emission(tensors["x"].to(torch.bfloat16), {"tokens_per_s": 10.0 + chunk_index})

    def finish(self):
        return {"words": 3, "period_ms": "fast"}


class Forgets(Words):
    """One way through it has no ``return``."""

    def encode(self, chunk_index):  # noqa: RET503
        if chunk_index != self.ends:
            return super().encode(chunk_index)
        torch.ones(3)  # and was to return it

    def decode(self, chunk_index, tensors):
        super().decode(chunk_index, tensors)


class Doubled:
    """Its sums are over the mesh."""

    def __init__(self, context):
        self.tp, self.threads = context.tp, torch.get_num_threads()

    def step(self, tensors, step_index, num_steps):
        log.info("threads %d", self.threads)
        return {"x": self.tp.all_reduce(tensors["x"] * 2 / self.tp.size)}


class Normalises(Doubled):
    """The second of its ranks does it within the tensor that it received, and the first in one of its own."""

    def step(self, tensors, step_index, num_steps):
        x = tensors["x"]
        half = x.div_(2) if self.tp.group_rank else x / 2
        return {"x": self.tp.all_reduce(half * 2 / self.tp.size)}


class Rounded(Doubled):
    """Each rank's share is rounded before it is summed: more ranks, another sum."""

    def step(self, tensors, step_index, num_steps):
        third = (tensors["x"] / 3 / self.tp.size * (1 + 0.01 * self.tp.group_rank)).to(torch.bfloat16)
        return {"x": self.tp.all_reduce(third).float()}
