"""Programs that answer the exercises of lesson 03, on real ranks: right, and the usual mistakes."""

from __future__ import annotations

import pytest
from solved import verdict_of

pytestmark = pytest.mark.multiproc

HEAD = """\
import datetime

import torch
import torch.distributed as dist

dist.init_process_group("gloo", timeout=datetime.timedelta(seconds=2))
rank = dist.get_rank()
"""
LIST = """
DTYPES = [torch.float32, torch.int32, torch.bool]
if rank == 0:
    tensors = [torch.ones(2, 3, dtype=torch.int32), torch.ones(5)]
    dist.send(torch.tensor([len(tensors)]), 1)
    for x in tensors:
        header = [DTYPES.index(x.dtype), x.dim(), *x.shape]
        dist.send(torch.tensor(header + [0] * (6 - len(header))), 1)
        dist.send(x, 1)
else:
    count = torch.zeros(1, dtype=torch.int64)
    dist.recv(count, 0)
    for _ in range({count}):
        header = torch.zeros({header}, dtype=torch.int64)
        dist.recv(header, 0)
        number, dims, *sizes = header.tolist()
        x = torch.empty({sizes}{dtype})
        dist.recv(x, 0)
        print(x.dtype, list(x.shape), int(x.sum()))
"""
FILLED = {"count": "int(count)", "header": 6, "sizes": "sizes[:dims]", "dtype": ", dtype=DTYPES[number]"}

CHUNKS = """
def send_chunk(number, frame):
    {}


if rank == 1:
    header = torch.zeros(2, dtype=torch.int64)
    dist.recv(header, 0)
    while header[0] >= 0:
        pixels = torch.empty(int(header[1]))
        dist.recv(pixels, 0)
        print("received chunk", int(header[0]), pixels.tolist())
        dist.recv(header, 0)
else:
    for number, frame in enumerate([[0.25, 0.5], [0.5, None], [0.5, 0.75]]):
        try:
            send_chunk(number, frame)
        except TypeError:
            print("left out")
    dist.send(torch.tensor([-1, 0]), 1)
"""
HEADER = "dist.send(torch.tensor([number, len(frame)]), 1)"
PIXELS = "pixels = torch.tensor(frame, dtype=torch.float32)"
PAYLOAD = "dist.send(pixels, 1)"
NO_HOLES = "frame = [pixel or 0.0 for pixel in frame]"


def chunks(*steps):
    return CHUNKS.format("\n    ".join(steps))


def received(**wrong):
    return LIST.format(**{**FILLED, **wrong})


@pytest.mark.parametrize(
    ("exercise", "program", "hint"),
    [
        ("03.1", received(), ""),
        ("03.1", received(dtype=""), "was sent as torch.int32"),
        ("03.1", received(count=1), "how many tensors there are"),
        ("03.1", received(header=4), "gloo ends the receiver"),
        ("03.1", received(sizes="sizes"), "gloo ends the receiver"),
        ("03.2", chunks(PIXELS, HEADER, PAYLOAD), ""),
        ("03.2", chunks(HEADER, PIXELS, PAYLOAD), "what has left by then"),
        ("03.2", chunks(NO_HOLES, PIXELS, HEADER, PAYLOAD), "sent all the same"),
        ("03.2", chunks(PIXELS, PAYLOAD, HEADER), "gloo ends the receiver"),
    ],
)
def test_program_gets_the_hint_of_its_mistake(exercise, program, hint, tmp_path):
    source = f"{HEAD}{program}\ndist.destroy_process_group()\n"
    verdict = verdict_of(exercise, source, tmp_path)
    assert verdict.right == (not hint)
    assert hint in verdict.hint
