"""Mesh ranks that differ on purpose, one case after another in one world: ``guarded_ranks.py PLAN OUT``.

A refused collective has not reached the backend on any rank, so the groups stay in step and the next case can
follow. The last case has no difference and must give the right sum.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import torch
import torch.distributed as dist
from torch.utils._python_dispatch import TorchDispatchMode

from ppwork.errors import PPWorkError
from ppwork.plan import Plan
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope
from ppwork.records.spans import Recorder
from ppwork.runtime import groups as live
from ppwork.runtime.membership import Membership
from ppwork.runtime.plane import Timed
from ppwork.worker.collectives import StageTPGroup
from ppwork.worker.loops import generate
from ppwork.worker.tally import Tally, counted

SAME = ["float32[4]", "float32[4]"]
FROM = "from 1 float32[4]"
CASES = {
    "shape": {2: ["float32[4]", "float32[5]"]},
    "dtype": {3: ["float32[4]", "float64[4]"]},
    "reduction": {2: ["float32[4]", "max float32[4]"]},
    "root": {rank: ["float32[4]", f"from {int(rank == 3)} float32[4]"] for rank in (1, 2, 3)},
    "order": {1: [*SAME[1:], FROM], 2: [*SAME[1:], FROM], 3: [FROM, *SAME[1:]]},
    "one more at the end": {2: [*SAME, "float32[4]"]},
    "one more before": {3: ["float32[7]", *SAME]},
    "one more between": {2: ["float32[4]", "more float32[4]", "float32[4]"]},
    "fewer": {2: ["float32[4]"]},
    "none": {2: []},
    "input": {},
    "inputs missing": {},
    "wrong group": {},
    "agreed": {},
}


def tensor_of(text: str) -> torch.Tensor:
    dtype, _, size = text.removesuffix("]").partition("[")
    return torch.ones(int(size), dtype=getattr(torch, dtype))


class Summing:
    """Stage 1 that makes the sums of this rank's list."""

    def __init__(self, tp, sums, other=None):
        self.tp, self.sums, self.other = tp, sums, other

    def reset_cache(self):
        pass

    def recompute(self, context_frames):
        pass

    def step(self, tensors, step_index, num_steps):
        total = torch.zeros(1)
        if self.other is not None:
            dist.broadcast(total, group=self.other, group_src=0)
        for text in self.sums:
            how, _, tensor = text.rpartition(" ")
            if how == "max":
                dist.all_reduce(tensor_of(tensor), dist.ReduceOp.MAX, group=self.tp.group)  # MAX
            elif how == "more":
                total = self.tp.all_reduce(tensor_of(tensor))  # MORE
            elif how:
                dist.broadcast(tensor_of(tensor), group=self.tp.group, group_src=int(how[-1]))  # FROM
            else:
                total = self.tp.all_reduce(tensor_of(tensor))  # SUM
        return {"x": total}


def main(plan: Plan, out: str) -> None:
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    groups = live.join(plan, Membership(rank, world, tuple(range(world)), rank))
    if rank > 0:
        reached = []

        class Backend(TorchDispatchMode):
            """Stands behind the guards."""

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                if func is torch.ops.c10d.allreduce_.default:
                    reached.append(list(args[0][0].shape))
                return func(*args, **(kwargs or {}))

        found = {}
        tally = Tally(rank, str(groups.role), plan.compare_collectives)
        for index, (name, sums) in enumerate(CASES.items()):
            tensors = {"frames": torch.arange(6.0), "sigma": torch.ones(1)}
            if name == "input" and rank == 3:
                tensors["sigma"][0] += 1
            if name == "inputs missing" and rank == 2:
                del tensors["sigma"]
            plane = SimpleNamespace(
                groups=groups,
                timed=lambda step, ids: nullcontext(Timed()),
                computed=lambda calls: calls,
                recorder=Recorder(None),
            )
            other = groups["mesh_pg"] if name == "wrong group" else None
            stage = counted(Summing, tally)(StageTPGroup(groups), sums.get(rank, SAME), other)
            envelope = PPEnvelope(PPAction.INFER, Ids(index, index, 0), ChunkPlan.of(1), {}, tensors)
            reached.clear()
            try:
                with Backend():
                    result, _ = generate(plane, plan.replace(digests="input" in name), stage, tally, envelope)
                said = result.tensors["x"].tolist()
            except PPWorkError as error:
                said = [type(error).__name__, error.what, error.where, error.check_first]
            found[name] = {"said": said, "reached": list(reached)}
        (Path(out) / str(rank)).write_text(json.dumps(found))
    groups.close()


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(Plan.from_json(sys.argv[1].encode()), sys.argv[2])
