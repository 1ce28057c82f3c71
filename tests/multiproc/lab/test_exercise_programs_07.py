"""The programs of lesson 07's exercises on ranks: each usual mistake gets its hint, a right one none."""

from __future__ import annotations

import pytest
from solved import right_program, verdict_of

pytestmark = pytest.mark.multiproc

HEAD = """
import torch
import torch.distributed as dist
import torch.nn.functional as F

dist.init_process_group("gloo")
rank = dist.get_rank()
x = torch.tensor([[1.0, 2.0, 3.0, 4.0], [0.0, 1.0, 0.0, 2.0]])
weight = torch.arange(16.0).view(4, 4)
bias = torch.tensor([1.0, 2.0, 3.0, 4.0])
mine = slice(2 * rank, 2 * rank + 2)
"""
TAIL = """
print("y", y.tolist())
dist.barrier()
dist.destroy_process_group()
"""
PART = "part = F.linear(x, weight[mine], bias[mine])\n"
GATHER = "parts = [torch.empty_like(part) for _ in range(2)]\ndist.all_gather(parts, part)\n"
SHARE = "y = F.linear(x[:, mine], weight[:, mine])\n"
SUM = "dist.all_reduce(y)\n"


@pytest.mark.parametrize(
    ("exercise", "body", "hint"),
    [
        ("07.3", PART + GATHER + "y = torch.cat(parts)", "below each other"),
        ("07.3", PART + "y = part", "collect the other half"),
        ("07.3", PART + "dist.all_reduce(part)\ny = part", "The halves were added"),
        ("07.3", "y = F.linear(x, weight, bias)", "all four outputs"),
        ("07.4", SHARE.replace("mine])\n", "mine], bias)\n") + SUM, "too large by its bias"),
        ("07.4", SHARE + "y = y + bias", "this rank's share"),
        ("07.4", "y = F.linear(x, weight, bias)", "all four inputs"),
        ("07.4", SHARE + "y = y + bias if rank == 0 else y\n" + SUM, ""),
    ],
)
def test_a_split_layer_gets_its_hint(tmp_path, exercise, body, hint):
    verdict = verdict_of(exercise, f"{HEAD}{body}\n{TAIL}", tmp_path)
    assert hint in verdict.hint
    assert verdict.right == (not hint)


TO_RANK_0 = "        dist.send(head, dst=0)\n"
FROM_RANK_1 = "        dist.recv(head, src=1)\n"
TO_MESH = "        dist.broadcast(head, group=mesh, group_src=0)\n"


@pytest.mark.parametrize(
    ("without", "hint"),
    [([TO_MESH], "Rank 2 was not told"), ([TO_RANK_0, FROM_RANK_1], "Rank 0 was not told")],
    ids=["rank 0 only", "follower only"],
)
def test_a_refusal_that_somebody_is_not_told_gets_its_hint(tmp_path, without, hint):
    text = right_program("07.2")
    for line in without:
        assert text.count(line) == 1
        text = text.replace(line, "        pass\n")
    verdict = verdict_of("07.2", text, tmp_path, ranks=3)
    assert hint in verdict.hint
    assert verdict.right == (not hint)
