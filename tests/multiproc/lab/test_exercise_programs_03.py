"""Programs that answer the exercises of lesson 03, on real ranks: right, and the usual mistakes."""

from __future__ import annotations

import pytest
from solved import changed, right_program, verdict_of

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

CHUNKS = right_program("03.2")
PIXELS, HEADER, PAYLOAD = CHUNKS.partition("picture):\n")[2].splitlines(keepends=True)[:3]
AS_IT_IS = PIXELS.replace(".contiguous()", "")
EITHER = HEADER.replace("*pixels.shape", "len(picture), len(picture[0])")
"""The header of a picture, also before it is a tensor."""
NO_HOLES = "    picture = [[pixel or 0.0 for pixel in row] for row in picture]\n"
REFUSES = "    if not pixels.is_contiguous():\n        raise RuntimeError\n"


def chunks(*lines):
    return changed(CHUNKS, (PIXELS + HEADER + PAYLOAD, "".join(lines)))


def received(**wrong):
    return f"{HEAD}{LIST.format(**{**FILLED, **wrong})}\ndist.destroy_process_group()\n"


@pytest.mark.parametrize(
    ("exercise", "program", "hint"),
    [
        ("03.1", received(), ""),
        ("03.1", received(dtype=""), "was sent as torch.int32"),
        ("03.1", received(count=1), "how many tensors there are"),
        ("03.1", received(header=4), "gloo ends the receiver"),
        ("03.1", received(sizes="sizes"), "gloo ends the receiver"),
        ("03.2", chunks(EITHER, PIXELS, PAYLOAD), "The chunk with the hole stranded"),
        ("03.2", chunks(AS_IT_IS, HEADER, PAYLOAD), "the transpose, stranded"),
        ("03.2", chunks(AS_IT_IS, REFUSES, HEADER, PAYLOAD), "nothing of it is missing"),
        ("03.2", chunks(NO_HOLES, PIXELS, HEADER, PAYLOAD), "sent all the same"),
        ("03.2", chunks(PIXELS, PAYLOAD, HEADER), "gloo ends the receiver"),
    ],
)
def test_program_gets_the_hint_of_its_mistake(exercise, program, hint, tmp_path):
    verdict = verdict_of(exercise, program, tmp_path)
    assert verdict.right == (not hint)
    assert hint in verdict.hint
