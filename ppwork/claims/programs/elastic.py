"""Ranks that torchrun's agent starts again, and groups that are ended."""

from __future__ import annotations

import os
import sys
from datetime import timedelta

import torch
import torch.distributed as dist

from ppwork.claims.rank import World


def restarted(world: World) -> None:
    """Torchrun's agent starts a rank, which fails, and starts it again."""
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    config = LaunchConfig(
        min_nodes=1,
        max_nodes=1,
        nproc_per_node=1,
        max_restarts=1,
        rdzv_backend="c10d",
        rdzv_endpoint="127.0.0.1:0",
        local_addr="127.0.0.1",
        run_id="restarted",
        start_method="fork",
    )
    elastic_launch(config, _count_who_is_here)(world)
    world.note(ended=True)


def _count_who_is_here(world: World) -> None:
    """Count ourselves in the store that ``env://`` gives, as it is and behind a prefix of this attempt."""
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    store, _, _ = next(dist.rendezvous("env://"))  # type: ignore[attr-defined]
    prefixed = dist.PrefixStore(f"attempt {attempt}", store)  # type: ignore[attr-defined]
    world.note(**{f"plain_{attempt}": store.add("here", 1), f"prefixed_{attempt}": prefixed.add("here", 1)})
    if attempt == 0:
        sys.exit(3)


def shut_down(world: World) -> None:
    """Groups are ended by ``shutdown`` and by ``abort``, and then used."""
    for name in ("shutdown", "abort"):
        group = dist.new_group(timeout=timedelta(seconds=5))
        dist.barrier(group, device_ids=[world.device.index] if world.device.type == "cuda" else None)
        try:
            getattr(group, name)()
            world.note(**{f"{name}_returned": True})
            world.meet(name)
            total = torch.ones(1, device=world.device)
            dist.all_reduce(total, group=group)
            world.note(**{f"{name}_total": total.item()})
        except (RuntimeError, AttributeError) as error:
            world.note(**{f"{name}_error": str(error).splitlines()[0]})
