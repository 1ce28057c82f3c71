"""Programs that answer the exercises of lessons 00 and 01, on real ranks: right, and the usual mistakes."""

from __future__ import annotations

import pytest
from solved import verdict_of

pytestmark = pytest.mark.multiproc

HEAD = """\
import datetime
import time

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
rank = dist.get_rank()
"""

NEIGHBOURS = """\
mine, neighbours = torch.tensor([10.0 + rank]), torch.zeros(1)
{}
print(f"my neighbour's number is {{neighbours.item():g}}")
"""
IN_TURN = """\
if rank == 0:
    dist.send(mine, dst=1)
    dist.recv(neighbours, src=1)
else:
    dist.recv(neighbours, src=0)
    dist.send(mine, dst=0)
"""

# A rank with nothing to do may end before another has connected to it, whose start then fails.
STAGES = """\
dist.barrier()
number = torch.tensor([3.0])
if rank == 0:
    dist.send(number, dst=1)
    dist.recv(number, src={last})
    print(f"the result is {{number.item():g}}")
elif rank == 1:
    dist.recv(number, src=0)
    dist.send(number * number{at_once}, dst={after})
elif {last} == 2:
    dist.recv(number, src=1)
    dist.send(number + 1, dst=0)
"""

THREE = """\
if rank == 0:
    {}
else:
    time.sleep(0.2)
    frame = torch.zeros(1000)
    for _ in range(3):
        dist.recv(frame, src=0)
        print("received", int(frame[0]))
"""
ONE_BUFFER = "frame = torch.zeros(1000)\n    for number in (1, 2, 3):\n        frame.fill_(number)\n        "
OWN_BUFFERS = "frames = [torch.full((1000,), float(n)) for n in (1, 2, 3)]\n    "

WAIT_FOR_ALL = "\n    for work in works:\n        work.wait()"

RING = """\
right, left = (rank + 1) % 3, (rank - 1) % 3
mine, theirs = torch.full((1000,), float(rank)), torch.full((1000,), -1.0)
{}
print("has what rank", int(theirs[0]), "sent")
"""


@pytest.mark.parametrize(
    ("exercise", "ranks", "program", "hint"),
    [
        ("00.1", 2, NEIGHBOURS.format(IN_TURN), ""),
        (
            "00.1",
            2,
            NEIGHBOURS.format("dist.send(mine, 1) if rank == 0 else dist.recv(neighbours, 0)"),
            "Rank 0 has received nothing",
        ),
        (
            "00.1",
            2,
            NEIGHBOURS.format("dist.send(mine, 1 - rank)\ndist.recv(neighbours, 1 - rank)"),
            "nobody received",
        ),
        ("00.1", 2, NEIGHBOURS.format(IN_TURN.replace("neighbours, src=0", "mine, src=0")), "its own number"),
        ("00.1", 3, "", "asks for 2"),
        ("00.2", 3, STAGES.format(last=2, after=2, at_once=""), ""),
        ("00.2", 3, STAGES.format(last=1, after=0, at_once=""), "rank 1 still sends it to rank 0"),
        ("00.2", 3, STAGES.format(last=1, after=0, at_once=" + 1"), "rank 2 did nothing"),
        (
            "01.2",
            2,
            THREE.format(f"{OWN_BUFFERS}works = [dist.isend(f, 1) for f in frames]{WAIT_FOR_ALL}"),
            "",
        ),
        ("01.2", 2, THREE.format(f"{ONE_BUFFER}work = dist.isend(frame, 1)\n    work.wait()"), "in a list"),
        (
            "01.2",
            2,
            THREE.format(f"works = []\n    {ONE_BUFFER}works.append(dist.isend(frame, 1)){WAIT_FOR_ALL}"),
            "a buffer of its own",
        ),
        ("01.2", 2, THREE.format(f"{ONE_BUFFER}dist.isend(frame, 1).wait()"), "at most 1 of the three"),
        (
            "01.3",
            3,
            RING.format("work = dist.isend(mine, right)\ndist.recv(theirs, left)\nwork.wait()"),
            "",
        ),
        (
            "01.3",
            3,
            RING.format(
                "if rank == 0:\n    dist.send(mine, right)\n    dist.recv(theirs, left)\n"
                "else:\n    dist.recv(theirs, left)\n    dist.send(mine, right)"
            ),
            "",
        ),
        ("01.3", 3, RING.format("dist.recv(theirs, left)\ndist.send(mine, right)"), "recv"),
        ("01.3", 3, RING.format("dist.isend(mine, right)\ndist.recv(theirs, left)"), "was let go"),
        (
            "01.3",
            3,
            RING.format("work = dist.isend(mine, left)\ndist.recv(theirs, right)\nwork.wait()"),
            "turns the other way",
        ),
    ],
)
def test_program_gets_the_hint_of_its_mistake(exercise, ranks, program, hint, tmp_path):
    source = f"{HEAD}{program}\ndist.destroy_process_group()\n"
    verdict = verdict_of(exercise, source, tmp_path, ranks=ranks)
    assert verdict.right == (not hint)
    assert hint in verdict.hint
