"""Pipelines in a job of somebody else's: ``job_pipelines.py CASE OUT``; each rank writes what it saw."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh

from ppwork.ranks import Plan, PPWorkError, Stage0Plane, join

RANK = int(os.environ["RANK"])
JOB = int(os.environ["WORLD_SIZE"])
MESHES = ("right", "gpus", "one")
"""Cases in which the job gives the mesh that the pipeline has."""
BOUND_S = 20.0


def job_group(out: Path) -> None:
    """Make the job's own default group, and on some ranks one more: their names of groups now differ."""
    dist.init_process_group("gloo", init_method=f"file://{out}/job", rank=RANK, world_size=JOB)
    if RANK < 2:
        dist.new_group([0, 1], use_local_synchronization=True)


def plan_of(ranks: list[int], **changes: object) -> Plan:
    return Plan(
        **{"mesh_size": len(ranks) - 1, "chunks": 3, "backend": "gloo", "timeout_s": BOUND_S, **changes}
    )


def run(plane, first: int, fails: bool = False) -> list[float]:
    """Send three chunks, which the mesh sums; return what came back."""
    if isinstance(plane, Stage0Plane):
        came = []
        for k in range(3):
            plane.send({"x": torch.full((3,), float(k + first))})
            result, _ = plane.receive_result()
            came.append([result.tensors["x"][0].item(), result.metadata["epoch"]])
        plane.shutdown()
        return came
    for envelope in plane.chunks():
        if fails and envelope.ids.chunk_index == 1 and plane.role == "follower":
            raise ValueError("my bug on the follower")
        x = envelope.tensors["x"].clone()
        dist.all_reduce(x, group=plane.groups["tp_pg"])
        plane.reply({"x": x}, metadata={"epoch": envelope.ids.cache_epoch})
    return []


def left_over() -> list[int]:
    """Return how many groups, threads and descriptors this process has, once what has ended is gone."""
    until_s = time.monotonic() + 5
    while of_process("task") > threading.active_count() and time.monotonic() < until_s:
        time.sleep(0.01)
    return [len(dist.distributed_c10d._world.pg_map), of_process("task"), of_process("fd")]


def of_process(what: str) -> int:
    return sum(1 for _ in Path("/proc/self", what).iterdir())


def two(out: Path, *, fails: bool) -> object:
    """[0, 1, 2] and [3, 4] at once, twice; rank 5 in neither, and the job's own group goes on."""
    job_group(out)
    seen: list[object] = []
    mine = [0, 1, 2] if RANK < 3 else [3, 4]
    for session in range(2 if RANK < 5 else 0):
        try:
            # Who waits in a sum for the one that failed waits for this bound.
            plan = plan_of(mine, timeout_s=8.0 if fails and session else BOUND_S)
            with join(plan, ranks=mine, run_dir=out / f"{mine[0]}-{session}") as plane:
                seen.append(run(plane, mine[0], fails=fails and RANK < 3 and session == 1))
        except (PPWorkError, ValueError, RuntimeError) as error:  # a sum of one's own: torch's error
            seen.append(type(error).__name__)
            break
    total = torch.ones(1)
    dist.all_reduce(total)
    return [seen, total.item()]


def sessions(out: Path) -> object:
    """Four sessions of all ranks, with no default group beside them; what each leaves."""
    left = []
    for session in range(4):
        with join(plan_of([*range(JOB)], in_flight_depth=session + 1), run_dir=out / str(session)) as plane:
            came = run(plane, session)
        left.append([came, *left_over()])
    return left


def mesh(out: Path, kind: str) -> object:
    """A mesh that the job has made, for two sessions; in what order its sum runs after them."""
    dist.init_process_group("gloo", init_method=f"file://{out}/job", rank=RANK, world_size=JOB)
    tp = dist.new_group([1, 2], timeout=timedelta(seconds=77))
    ranks = {"wrong": [0, 1], "flat": [[1, 2]]}.get(kind, [1, 2])
    given = None
    if RANK in (1, 2):
        given = DeviceMesh.from_group(tp, "cuda" if kind == "gpus" else "cpu") if kind in MESHES else None
    if kind in ("wrong", "flat"):
        given = DeviceMesh("cpu", ranks)
    if kind == "one" and RANK == 2:
        given = None
    seen: list[object] = []
    for _ in range(2):
        with join(plan_of([0, 1, 2]), mesh=given) as plane:
            seen.append(run(plane, 0))
            if RANK:
                assert plane.device_mesh is given
                assert plane.groups["tp_pg"] is tp
                assert plane.groups.uses_gpu == (kind == "gpus")
                assert plane.groups.device.type == "cpu"
    if RANK:
        x = torch.ones(1)
        dist.all_reduce(x, group=tp)
        seen += [x.item(), tp._get_backend(torch.device("cpu")).options._timeout.total_seconds()]
    return seen


def misused(out: Path, kind: str) -> object:
    """What nobody may do, and what he is told."""
    if kind == "not all the same" and RANK < 2:
        os.environ["SCOPE_DIST_TIMEOUT_S"] = "3"
        with join(plan_of([0, 1]), ranks=[0, 1] if RANK == 0 else [1, 2]):
            pass
    if kind == "twice":
        with join(plan_of([0, 1, 2])) as plane:
            try:
                with join(plan_of([0, 1, 2])):
                    pass
            except PPWorkError as error:
                run(plane, 0)
                return [type(error).__name__, error.what]
    if kind == "dead sum":
        with join(plan_of([0, 1, 2])) as plane:
            run(plane, 0)
        plane.groups["tp_pg"]
    return None


def main() -> None:
    torch.set_num_threads(1)
    case, out = sys.argv[1], Path(sys.argv[2])
    name, _, kind = case.partition(": ")
    try:
        seen = {
            "two": lambda: two(out, fails=False),
            "one fails": lambda: two(out, fails=True),
            "sessions": lambda: sessions(out),
            "mesh": lambda: mesh(out, kind),
            "misused": lambda: misused(out, kind),
        }[name]()
    except PPWorkError as error:
        seen = [type(error).__name__, error.what]
    (out / f"seen-{RANK}").write_text(json.dumps(seen))
    os._exit(0)  # a job that failed half-way has groups that nobody ends


if __name__ == "__main__":
    main()
