"""The links with real ranks: receives posted ahead stay right whatever comes next."""

from __future__ import annotations

import json

import pytest
from toy_runs import toy

pytestmark = pytest.mark.multiproc

RANK = """
import json, os, sys, time, zlib
import torch
from ppwork.runtime import groups as live
from ppwork.runtime.membership import Membership
from ppwork.protocol.envelope import ChunkPlan, Ids, PPAction, PPEnvelope, Reason
from ppwork.runtime.links import P2PReceiver, P2PSender
from ppwork.runtime.links import BroadcastReceiver, BroadcastRoot
from ppwork.plan import Plan
from ppwork.runtime.tensors import as_bytes
from ppwork.runtime.messages import Preflight, limits_of

plan, stream, out = Plan.from_json(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3]
rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
groups = live.join(plan, Membership(rank, world, tuple(range(world)), rank))

def tensors_of(index, shapes):
    generator = torch.Generator().manual_seed(index)
    dtypes = [torch.float32, torch.int16, torch.bfloat16, torch.bool]
    return {
        f"t{i}": torch.randint(0, 2, shape, generator=generator).to(dtypes[i % 4]) + (i % 4 == 0) * index
        for i, shape in enumerate(shapes)
    }

def sum_of(tensors):
    crc = {k: zlib.crc32(bytes(as_bytes(v).numpy())) for k, v in tensors.items()}
    return [(k, str(v.dtype), list(v.shape), crc[k]) for k, v in tensors.items()]

seen, kept = [], []
if rank == 0:
    preflight, sender = Preflight(limits_of(plan), groups.device), P2PSender(groups, "down_pg")
else:
    end = P2PReceiver(groups, "down_pg", plan) if rank == 1 else BroadcastReceiver(groups, plan)
    take = end.receive
    mesh = BroadcastRoot(groups) if rank == 1 else None
for index, what in enumerate(stream):
    if what[0] == "begin":  # the leader's word to the mesh, as on CUDA
        if rank == 1:
            mesh.begin(plan.frame_bytes)
        if rank == 2:
            assert take() is None
        seen.append("begin")
    elif rank == 0:
        kind, detail = what
        ids = Ids(index, index, 0)
        if kind == "chunk":
            tensors = tensors_of(index, detail)
            message = PPEnvelope(PPAction.INFER, ids, ChunkPlan.of(1), {}, tensors)
            seen.append(sum_of(tensors))
        elif kind == "long":
            message = PPEnvelope(PPAction.NOOP, ids, None, {"text": "x" * detail})
            seen.append(detail)
        else:
            reason = Reason("ValueError", "the end", {}, "nothing")
            message = PPEnvelope(PPAction[kind], ids, reason=reason if kind == "ERROR" else None)
            seen.append(kind)
        sender.send(preflight(message))
    else:
        incoming = take()
        if mesh is not None:
            mesh.pass_on(incoming)
        message = incoming.message
        if message.action is PPAction.INFER:
            seen.append(sum_of(message.tensors))
            kept.append((index, message.tensors))
        else:
            seen.append(len(message.metadata["text"]) if message.metadata else message.action.name)
# A stage may keep what it got: nothing that came later may have been written over it.
for index, tensors in kept:
    assert sum_of(tensors) == [tuple(x) if isinstance(x, list) else x for x in seen[index]], index
start = time.monotonic()
if stream[-1][0] != "ERROR":
    groups.close()
with open(f"{out}/{rank}", "w") as file:
    json.dump({"seen": seen, "leaving_s": time.monotonic() - start}, file)
    file.flush()
os._exit(0)
"""

A = [[70_000], [40, 500], [30_000]]
"""Three CPU tensors behind the frame, the large one alone."""
E, F = [[30_000], [20_000]], [[15_000]]
"""Two in one transfer, and one."""
G = [[300_000], [5_000]]
"""More than a megabyte."""
B = [[5], [3, 7]]
"""Small ones that ride in the frame."""
C = [[70_000], [20_000]]
D = [[2, 60_000], [5]]
NEVER_TWICE = [["chunk", [[20_000 + i], [9]]] for i in range(20)]

STREAMS = {
    "repeats": [["chunk", A]] * 4 + [["SHUTDOWN", None]],
    "a change with a receive posted": [
        *[["chunk", A]] * 3, *[["chunk", C]] * 3, ["chunk", A], ["chunk", D], ["chunk", A],
        ["SHUTDOWN", None],
    ],
    "other actions with a receive posted": [
        *[["chunk", A]] * 3, ["NOOP", None], ["long", 9_000], ["chunk", A], ["chunk", A], ["chunk", B],
        ["chunk", A], ["chunk", A], ["NOOP", None], ["NOOP", None], ["chunk", D], ["SHUTDOWN", None],
    ],
    "the leader's word with a receive posted": [
        *[["begin", None], ["chunk", A]] * 4, ["begin", None], ["begin", None], ["chunk", B], ["begin", None],
        ["SHUTDOWN", None],
    ],
    "sizes in turns": [
        *[["chunk", E]] * 3, *[["chunk", F]] * 3, ["NOOP", None], ["long", 9_000], ["chunk", F], ["chunk", E],
        *[["chunk", G]] * 3, ["chunk", E], ["chunk", E], ["chunk", B], ["chunk", G], ["chunk", A],
        *[["chunk", F]] * 3, ["begin", None], ["chunk", F], ["begin", None], ["SHUTDOWN", None],
    ],
    "never twice": [*NEVER_TWICE, ["chunk", A], ["chunk", A], *NEVER_TWICE, ["chunk", A], ["SHUTDOWN", None]],
    "a notice with a receive posted": [*[["chunk", A]] * 3, ["ERROR", None]],
    "a notice after a small payload": [*[["chunk", F]] * 3, ["ERROR", None]],
    "a notice after a large one": [*[["chunk", G]] * 3, ["ERROR", None]],
}  # fmt: skip


@pytest.mark.parametrize("name", STREAMS)
def test_every_message_arrives_whole_on_every_rank_and_stays_as_it_was(tmp_path, start_ranks, name):
    """Receives posted ahead, with a safe change of schema in mid-stream; R8: no buffer is shared."""
    stream = STREAMS[name]
    plan = toy(mesh_size=2, timeout_s=20.0).to_json().decode()
    command = ["-c", RANK, plan, json.dumps(stream), str(tmp_path)]
    assert start_ranks([command] * 3).wait() == [0, 0, 0]
    ranks = [json.loads((tmp_path / str(rank)).read_text()) for rank in range(3)]
    assert len(ranks[0]["seen"]) == len(stream)
    assert ranks[1]["seen"] == ranks[0]["seen"]
    assert ranks[2]["seen"] == ranks[0]["seen"]
    # What was posted ahead and never used must not hold up the way out until some bound.
    assert all(rank["leaving_s"] < 5 for rank in ranks)
