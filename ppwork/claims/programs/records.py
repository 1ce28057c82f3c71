"""Profiles and the flight recorder: what is written down of collectives and messages."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import re
import time
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d  # no public way to the records

from ppwork.claims.rank import World

BOUND = timedelta(seconds=1)


def profiled(world: World) -> None:
    """A broadcast and a message, profiled; the profile is read from its trace file."""
    tensor = torch.ones(4, device=world.device)
    with torch.profiler.profile() as profile:
        dist.broadcast(tensor, 0)
        _ = dist.send(tensor, 1) if world.rank == 0 else dist.recv(tensor, 0)
    path = world.folder / f"trace{world.rank}.json"
    profile.export_chrome_trace(str(path))
    events = json.loads(path.read_text())["traceEvents"]
    shown = [one for one in events if re.search("broadcast|send|recv", str(one.get("name")))]
    world.note(names=sorted({one["name"] for one in shown}), facts=sorted({*_facts(shown)}))


def _facts(events: list[dict[str, Any]]) -> list[str]:
    return [
        key
        for one in events
        for key in one.get("args", {})
        if re.search("rank|src|dst|peer", key, re.IGNORECASE)
    ]


def recorded(world: World) -> None:
    """Three collectives and two messages; the flight recorder's records, as JSON."""
    tensor = torch.ones(4, device=world.device)
    dist.broadcast(tensor, 0)
    dist.all_reduce(tensor)
    for _ in range(2):
        _ = dist.send(tensor, 1) if world.rank == 0 else dist.recv(tensor, 0)
    dist.barrier()
    found = json.loads(_dump("_json")())["entries"]
    world.note(names=[one["profiling_name"] for one in found], states=sorted({one["state"] for one in found}))


def counted_in_the_records(world: World) -> None:
    """So many collectives and messages as were drawn by lot; the records, pickled, are counted."""
    store = world.store("drawn")
    if world.rank == 0:
        store.set("drawn", json.dumps(random.sample(range(3, 10), 2)))
    collectives, messages = json.loads(store.get("drawn"))
    tensor = torch.ones(4, device=world.device)
    for _ in range(collectives):
        dist.all_gather([torch.empty_like(tensor) for _ in range(world.size)], tensor)
    for _ in range(messages):
        _ = dist.recv(tensor, 1) if world.rank == 0 else dist.send(tensor, 0)
    records = pickle.loads(_dump("")(includeStackTraces=False))["entries"]  # noqa: S301  our own
    world.note(collectives=collectives, messages=messages, records=len(records))


def _dump(ending: str) -> Any:  # noqa: ANN401
    kind = "nccl" if dist.get_backend() == "nccl" else "fr"
    return getattr(c10d, f"_dump_{kind}_trace{ending}")


def _past_the_bound(world: World) -> RuntimeError | None:
    """One collective of both ranks, and one to which rank 1 does not come within the bound."""
    tensor = torch.ones(4, device=world.device)
    dist.all_reduce(tensor)
    if world.rank == 1:
        time.sleep(1.5)
        return None
    try:
        dist.all_reduce(tensor)
        tensor[0].item()
    except RuntimeError as error:
        return error
    raise AssertionError("it was to time out")


def dumped_at_a_timeout(world: World) -> None:
    """The environment asks for the records in a file when a collective times out; is there one then?"""
    os.environ.update(TORCH_NCCL_DUMP_ON_TIMEOUT="1", TORCH_NCCL_WAIT_TIMEOUT_DUMP_MILSEC="250")
    for name in ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE"):
        os.environ[name] = f"{world.folder}/records"
    world.init(timeout=BOUND)
    error = _past_the_bound(world)
    world.note(error=str(error or "").split("\n")[0])
    time.sleep(0.5)
    world.note(files=sorted(file.name for file in world.folder.glob("records*")))


def dumped_by_ourselves(world: World) -> None:
    """The same, and rank 0 writes the records itself when it has the error."""
    world.init(timeout=BOUND)
    if _past_the_bound(world) is not None:
        (world.folder / "records").write_bytes(_dump("")(includeStackTraces=False))
    with contextlib.suppress(FileNotFoundError):
        found = pickle.loads((world.folder / "records").read_bytes())["entries"]  # noqa: S301  our own
        world.note(names=[one["profiling_name"] for one in found])
