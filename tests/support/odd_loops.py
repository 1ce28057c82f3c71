"""A loop of one's own whose mesh ranks make other sums in chunk 3: ``odd_loops.py CASE RUN_DIR COMPARE``.

In some cases it is odd in another way: its answers, its number of chunks, a cut, or what its ranks hold
or write into.
With a fourth argument, a file, the job has a default group of its own. A case may begin with ``strict``.
"""

import importlib
import os
import sys
from functools import partial

import torch
import torch.distributed as dist
from guarded_stages import odd_sums

from ppwork.ranks import Plan, Stage0Plane, join

CHUNKS, DRIFTED = 6, 4
"""Of ``follower stays``: the chunk of which the follower answers something else."""


CUTS = (2, 4)
"""Of ``cuts ...``: the chunks that come with one."""
WITHOUT_SUMS = (
    "none",
    "one too few",
    "one too many",
    "cuts unasked",
    "cuts asked",
    "holds the same",
    "holds another",
    "one writes",
    "all write",
    "says other",
)


def drive(plane, case):
    """Two chunks ahead, and the decode after the send."""
    count = CHUNKS + (case == "one too many")
    cuts = CUTS if case.startswith("cuts") else ()
    for k in range(2):
        plane.send({"x": torch.full((3,), float(k))})
    for k in range(count):
        _, good = plane.receive_result()
        assert good
        if k + 2 < count:
            plane.send({"x": torch.full((3,), float(k + 2))}, hard_cut=k + 2 in cuts)
    plane.shutdown()


def serve(plane, case):
    group = plane.tp.group
    for chunk in plane.chunks():
        if case == "cuts asked":
            assert chunk.plan.reset_cache == (chunk.ids.chunk_index in CUTS)
        if case.startswith("holds"):
            other = case == "holds another" and (chunk.ids.chunk_index, plane.rank) == (DRIFTED, 2)
            plane.compare({"seen": torch.arange(4), "counts": torch.full((2, 3), float(other))})  # HELD
        if case not in WITHOUT_SUMS:
            all_reduce = partial(dist.all_reduce, group=group)
            odd_sums(case, chunk.ids.chunk_index, group, all_reduce)
        drifts = case == "follower stays" and chunk.ids.chunk_index == DRIFTED and dist.get_rank(group) == 1
        answer = chunk.tensors["x"] + drifts
        if case == "all write" or (
            case == "one writes" and (chunk.ids.chunk_index, plane.rank) == (DRIFTED, 2)
        ):
            chunk.tensors["x"][0] = 7
        mine = plane.rank if case == "says other" and chunk.ids.chunk_index >= DRIFTED else 1
        told = {"cache": mine, "of": [chunk.ids.chunk_index, "all"]} if case == "says other" else None
        plane.reply({"x": answer}, metadata=told, copy=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    case, run_dir, compare, *job = sys.argv[1:]
    if case.endswith("leaves out"):  # its first functional call loads this, for seconds: not in a chunk
        importlib.import_module("torch._dynamo")
    strict = case.startswith("strict ")
    case = case.removeprefix("strict ")
    for file in job:
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=size)
    plan = Plan(
        mesh_size=2,
        chunks=CHUNKS + (case == "one too few"),
        in_flight_depth=2,
        backend="gloo",
        timeout_s=8,
        compare_collectives=int(compare),
        strict=strict,
    )
    with join(plan, run_dir=run_dir) as plane:
        if isinstance(plane, Stage0Plane):
            drive(plane, case)
        else:
            serve(plane, case)
