"""Who starts ranks, and from which thread groups are made."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing

from ppwork.claims.rank import World
from ppwork.process import die_with_parent

LATE_S = 0.3
STAY_S = 40.0
"""So long the rank of ``spawn`` that raises nothing would stay."""


def launched_by_hand(world: World) -> None:
    """No launcher started this rank; then the variable that torchrun sets is set, by hand as well."""
    os.environ.pop("TORCHELASTIC_RUN_ID", None)
    world.note(by_hand=dist.is_torchelastic_launched())
    os.environ["TORCHELASTIC_RUN_ID"] = "none"
    world.note(with_variable=dist.is_torchelastic_launched())


def launched_by_the_agent(world: World) -> None:
    """Torchrun's agent starts a rank, which asks."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=1,
        max_restarts=0,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        run_id="launched",
        start_method="fork",
    )
    elastic_launch(config, _ask)(world)


def _ask(world: World) -> None:
    world.note(by_agent=dist.is_torchelastic_launched())


def spawned(world: World) -> None:
    """``spawn`` starts two ranks, of which rank 1 raises; then it is given a function that has no file."""
    spawn: Callable[..., None] = torch.multiprocessing.spawn  # type: ignore[attr-defined]
    start = time.monotonic()
    try:
        spawn(_raises, args=(str(world.folder),), nprocs=2)
    except Exception as error:  # noqa: BLE001  whatever it makes of the rank's error
        text = str(error)
        world.note(error=type(error).__name__, named="rank 1 has had enough" in text)
        world.note(seconds=time.monotonic() - start)
    pid = int((world.folder / "rank0").read_text())
    world.note(other_is_gone=not Path(f"/proc/{pid}").exists())
    try:
        spawn(lambda _: None, nprocs=1)
        world.note(of_a_cell="")
    except Exception as error:  # noqa: BLE001  as above
        world.note(of_a_cell=f"{type(error).__name__}: {str(error).splitlines()[0]}")


def _raises(rank: int, folder: str) -> None:
    die_with_parent()
    if rank == 0:
        (Path(folder) / "written").write_text(str(os.getpid()))
        (Path(folder) / "written").rename(Path(folder) / "rank0")
        time.sleep(STAY_S)
    while not (Path(folder) / "rank0").exists():
        time.sleep(0.01)
    raise ValueError("rank 1 has had enough")


def groups_of_two_threads(world: World) -> None:
    """A thread for each of two links makes its own group and adds up in it; they come in turns."""
    _two_threads(world, made_by_its_thread=True)


def groups_of_one_thread(world: World) -> None:
    """The same, but the main thread makes both groups, and each thread is given its own."""
    _two_threads(world, made_by_its_thread=False)


def _two_threads(world: World, *, made_by_its_thread: bool) -> None:
    ours = {} if made_by_its_thread else {name: dist.new_group() for name in ("down", "up")}

    def work(name: str, number: float, late: bool) -> None:
        if late:
            time.sleep(LATE_S)
        try:
            group = ours.get(name) or dist.new_group()
            total = torch.full((1,), number, device=world.device)
            dist.all_reduce(total, group=group)
            world.note(**{name: total.item()})
        except RuntimeError as error:
            world.note(**{f"{name}_error": str(error).splitlines()[0]})

    links = (("down", 1.0, world.rank == 1), ("up", 10.0, world.rank == 0))
    threads = [threading.Thread(target=work, args=link) for link in links]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    world.meet("over")
