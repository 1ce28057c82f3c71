"""Distributed checkpoints: read by another number of ranks, and saved in the background."""

from __future__ import annotations

import os
import time
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType, async_save, save

from ppwork.claims.programs.startup import shared_port
from ppwork.claims.rank import World


def saved_by_two_read_by_one(world: World) -> None:
    """Two ranks save a tensor that they share; rank 0 reads the whole of it without the other."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor

    mesh = init_device_mesh(world.device.type, (2,))
    shared = distribute_tensor(torch.arange(8.0).to(world.device), mesh, [Shard(0)])
    save({"weights": shared}, checkpoint_id=world.folder / "saved")
    world.note(mine=shared.to_local().tolist())
    if world.rank == 0:
        state = {"weights": torch.zeros(8)}
        load(state, checkpoint_id=world.folder / "saved", no_dist=True)
        world.note(read=state["weights"].tolist())


def saved_in_a_thread(world: World) -> None:
    """An asynchronous save; the tensor is changed as soon as the call has returned."""
    _saved_in_the_background(world, AsyncCheckpointerType.THREAD)


def saved_in_a_process(world: World) -> None:
    """The same, by a process of its own."""
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    _saved_in_the_background(world, AsyncCheckpointerType.PROCESS)


def met_in_the_store_of_the_job(world: World) -> None:
    """Two ranks save by a process each, with DCP_USE_PREFIX_STORE=1; a store at MASTER_ADDR is there."""
    port = shared_port(world)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    store = dist.TCPStore("127.0.0.1", port, is_master=world.rank == 0, wait_for_workers=False)  # type: ignore[attr-defined]
    _saved_in_the_background(world, AsyncCheckpointerType.PROCESS)
    keys: list[str] = store.list_keys() if world.rank == 0 else []
    world.note(keys=sum(key.startswith("AsyncCheckpointProcess/") for key in keys))


def without_an_address(world: World) -> None:
    """The same in a job that has no MASTER_ADDR: its ranks met in a file."""
    state, kind = {"weights": torch.ones(4)}, AsyncCheckpointerType.PROCESS
    try:
        async_save(state, checkpoint_id=world.folder / "saved", async_checkpointer_type=kind)
        world.note(error="")
    except CheckpointException as error:
        world.note(error=str(error))


def read_from_nowhere(world: World) -> None:
    """A checkpoint is read that is not there, within ``except Exception``."""
    try:
        load({"weights": torch.zeros(4)}, checkpoint_id=world.folder / "nowhere")
    except Exception as error:  # noqa: BLE001  the question is whether it is one
        world.note(caught=type(error).__name__)
    except BaseException as error:  # noqa: BLE001
        world.note(passed_by=type(error).__name__, error=str(error))


def _saved_in_the_background(world: World, kind: AsyncCheckpointerType) -> None:
    state = {"weights": torch.full((1024,), 1.0)}
    start = time.monotonic()
    saving: Any = async_save(state, checkpoint_id=world.folder / "saved", async_checkpointer_type=kind)
    world.note(returned_s=time.monotonic() - start)
    state["weights"].fill_(2.0)
    saving.result()
    world.note(done_s=time.monotonic() - start)
    read = {"weights": torch.zeros(1024)}
    load(read, checkpoint_id=world.folder / "saved")
    world.note(read=[read["weights"].min().item(), read["weights"].max().item()])
