"""Programs that answer the exercises of lesson 02, on real ranks: right, and the usual mistakes."""

from __future__ import annotations

import pytest
from solved import verdict_of

pytestmark = pytest.mark.multiproc

HEAD = """\
import datetime

import torch
import torch.distributed as dist

limit = datetime.timedelta(seconds=2)
dist.init_process_group("gloo", timeout=limit)
rank = dist.get_rank()
"""
MESH = "mesh = dist.new_group([1], timeout=limit)\n"
DOWN, UP = (f"{name} = dist.new_group([0, 1], timeout=limit)\n" for name in ("down", "up"))
BOTH = DOWN + UP
CROSSED = f"if rank == 0:\n    {DOWN}    {UP}else:\n    {UP}    {DOWN}"
USE = """
x = torch.zeros(1)
if rank == 0:
    dist.send(x + 7, group=down, group_dst=1)
    dist.recv(x, group=up, group_src=1)
    print("result", int(x))
else:
    dist.recv(x, group=down, group_src=0)
    print("received", int(x))
    dist.all_reduce(x, group=mesh)
    dist.send(x, group=up, group_dst=0)
"""
SUM = "    dist.all_reduce(x, group=mesh)\n"
FAN_OUT = """
mesh = dist.new_group([1, 2, 3], timeout=limit)
x = torch.zeros(3)
if rank == 0:
    dist.send(torch.tensor([1.0, 2.0, 3.0]), 1)
if rank == 1:
    dist.recv(x, 0)
"""
MESH_ONLY = """
if rank > 0:
    y = 2 * x
    {}
    {}
    print("has", x.tolist(), y.tolist())
"""
X_BY_SRC, Y_BY_SRC = (f"dist.broadcast({name}, src=1, group=mesh)" for name in "xy")
Y_BY_GROUP_SRC = "dist.broadcast(y, group=mesh, group_src=0)"
BY_MESSAGES = """
if rank == 1:
    dist.send(x, 2)
    dist.send(x, 3)
if rank > 1:
    dist.recv(x, 1)
if rank > 0:
    print("has", x.tolist())
"""


@pytest.mark.parametrize(
    ("exercise", "ranks", "program", "hint"),
    [
        ("02.3", 2, MESH + BOTH + USE, ""),
        (
            "02.3",
            2,
            "if rank > 0:\n    mesh = dist.new_group([1], use_local_synchronization=True)\n" + BOTH + USE,
            "",
        ),
        ("02.3", 2, f"if rank > 0:\n    {MESH}{BOTH}{USE}", "the same group as their number 1"),
        ("02.3", 2, MESH + CROSSED + USE, "the same group as their number 2"),
        (
            "02.3",
            2,
            MESH + BOTH + USE.replace("all_reduce(x, group=mesh)", "all_reduce(x)"),
            "all_reduce",
        ),
        ("02.3", 2, MESH + BOTH + USE.replace("result", "total"), "`result 7`"),
        ("02.3", 2, MESH + BOTH + USE.replace(SUM, ""), "left out the sum"),
        ("02.3", 3, "", "asks for 2"),
        ("02.2", 4, FAN_OUT + MESH_ONLY.format(X_BY_SRC, Y_BY_GROUP_SRC), ""),
        ("02.2", 4, FAN_OUT + MESH_ONLY.format(X_BY_SRC, Y_BY_SRC), "Both roots are named by `src`"),
        (
            "02.2",
            4,
            FAN_OUT + MESH_ONLY.format(X_BY_SRC, Y_BY_GROUP_SRC.replace("=0", "=1")),
            "Whose numbers",
        ),
        (
            "02.2",
            4,
            FAN_OUT + MESH_ONLY.format("dist.broadcast(x, src=1)", Y_BY_GROUP_SRC),
            "so it waits for rank 0",
        ),
        (
            "02.2",
            4,
            FAN_OUT + "dist.broadcast(x, src=1)\nprint('has', x.tolist())",
            "leave it out of the call",
        ),
        ("02.2", 4, FAN_OUT + BY_MESSAGES, "made 0 broadcasts"),
    ],
)
def test_program_gets_the_hint_of_its_mistake(exercise, ranks, program, hint, tmp_path):
    source = f"{HEAD}{program}\ndist.barrier()\ndist.destroy_process_group()\n"
    verdict = verdict_of(exercise, source, tmp_path, ranks=ranks)
    assert verdict.right == (not hint)
    assert hint in verdict.hint
