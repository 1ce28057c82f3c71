"""A loop of one's own in which a rank fails in chunk 4, at depth 3: ``bad_loops.py CASE RUN_DIR``.

For a run without a folder RUN_DIR is ``-``.
"""

import os
import re
import signal
import sys
import threading
from contextlib import suppress

import torch
import torch.distributed as dist

from ppwork.errors import LocalProtocolError
from ppwork.ranks import Plan, Stage0Plane, join

DEPTH, CHUNKS, BAD = 3, 8, 4
PLAN = Plan(mesh_size=2, backend="gloo", timeout_s=10, in_flight_depth=DEPTH)
SHORT = Plan(mesh_size=2, backend="gloo", timeout_s=4, stall_s=1, in_flight_depth=DEPTH)
"""For a case that ends with a bound."""


def drive(plane, case):
    """Three chunks ahead, which the mesh has taken before it fails."""
    buffer = torch.zeros(3)
    if case == "follower raises":
        threading.Thread(target=int, args=("no number",), name="reader").start()
    if case.startswith("stage0 waits first"):
        dist.barrier()  # FIRST: nothing has left yet
    for k in range(DEPTH):
        plane.send({"x": torch.full((3,), float(k))})
    for k in range(CHUNKS):
        result, _ = plane.receive_result()
        assert result.tensors["x"].tolist() == [2.0 * k] * 3, (k, result.tensors)  # STALE
        if k + DEPTH == BAD and case == "stage0 meets all behind a refusal":
            with suppress(LocalProtocolError):
                plane.send({"x": torch.zeros(2, 2).t()})
        if k + DEPTH == BAD and case.startswith("stage0 meets all"):
            dist.barrier()  # ALL: the mesh computes
        if k + DEPTH == BAD and case == "stage0 swallows":
            with suppress(Exception):
                dist.barrier()  # OVER: and goes on, as if it had met them
        if k + 1 == CHUNKS and case == "stage0 ends its groups":
            dist.destroy_process_group()  # ENDED: with nothing on its way, too
        if k + DEPTH == BAD + 1 and case == "stage0 leaves some":
            plane.shutdown()  # EARLY
        if k + 1 == CHUNKS and case == "stage0 waits for all":
            dist.barrier()  # LAST: nothing is on its way, so the mesh might have come
        if BAD <= k + DEPTH < CHUNKS and case == "stage0 fills anew":
            plane.send({"x": buffer})  # LENT
            buffer.fill_(-1.0)
        elif k + DEPTH < CHUNKS:
            flush = k + DEPTH == BAD and case == "stage0 flushes and decodes"
            plane.send({"x": torch.full((3,), float(k + DEPTH))}, flush=flush)
    plane.shutdown()


def end_in_c(case):
    """Let no exception tell of it."""
    number = {"is killed": signal.SIGKILL, "is terminated": signal.SIGTERM, "crashes": signal.SIGSEGV}
    if (how := case.partition(" ")[2]) in number:
        os.kill(os.getpid(), number[how])  # SIGNAL
    if how == "aborts":
        os.abort()  # ABORT
    if how == "keeps the lock alone":
        re.match("(a+)+b", "a" * 99)  # LOCK
    if how == "ends torchrun":
        # One line: what torchrun passes on may come before the second call.
        os.kill(os.getppid(), signal.SIGTERM) or signal.pause()  # ENDS
    if how == "hangs":
        signal.pause()


def swallow(plane, case, chunk):
    """Make a sum that the guards refuse, and pass over that."""
    if chunk.ids.chunk_index == BAD and case == "mesh swallows and goes on":
        with suppress(LocalProtocolError):
            odd = torch.ones(4 + (plane.role == "follower"))
            dist.all_reduce(odd, group=plane.tp.group)  # ODD


def serve(plane, case):
    if case == "mesh waits first for all":
        dist.barrier()  # BEFORE: rank 0 does not come
    for chunk in plane.chunks():
        if chunk.ids.chunk_index == BAD and case.startswith(plane.role):
            if case.endswith("raises"):
                raise ValueError("my bug")
            if case.endswith("misspells"):
                chunk.tensors["y"]  # NAME
            if case.endswith("breaks"):
                break  # BREAK
            end_in_c(case)
            if case.endswith("meets all"):
                dist.barrier()  # HERE: rank 0 is not in it
            if case.endswith("swallows"):
                with suppress(Exception):
                    dist.all_reduce(chunk.tensors["x"])  # PAST: which is then no sum
            if case.endswith("makes a group"):
                dist.device_mesh.init_device_mesh("cpu", (2,))  # MESH
            if case.endswith("makes a group alone"):
                dist.new_group([1, 2], use_local_synchronization=True)  # ALONE
            if case.endswith("forgets"):
                continue  # LEAVES
        swallow(plane, case, chunk)
        dist.all_reduce(chunk.tensors["x"], group=plane.tp.group)  # SUM
        plane.reply({"x": chunk.tensors["x"]}, copy=True)
    if case == "mesh waits behind":
        dist.barrier()  # BEHIND: rank 0 leaves


if __name__ == "__main__":
    torch.set_num_threads(1)
    plan = SHORT if sys.argv[1].endswith(("for all", "alone", "job's")) else PLAN
    if sys.argv[1].endswith("the job's"):
        store = "file://" + os.environ["PPWORK_STORE"] + ".job"
        rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
        dist.init_process_group("gloo", init_method=store, rank=rank, world_size=size)
    with join(plan, run_dir=None if sys.argv[2] == "-" else sys.argv[2]) as plane:
        if isinstance(plane, Stage0Plane):
            drive(plane, sys.argv[1])
        else:
            serve(plane, sys.argv[1])
