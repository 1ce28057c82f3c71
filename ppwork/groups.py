"""Live process groups: device, store, parity, groups, warm edges; and the way out.

Every rank makes every group, in ``topology.GROUP_ORDER``, before anything is sent (rule R6). This is the only
place that knows which backend carries what: gloo the CPU bytes, NCCL the CUDA tensors, both under one handle.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ppwork.errors import LocalProtocolError, PeerTimeoutError, PlanError
from ppwork.parity import check_parity, decode_facts, encode_facts, facts_of
from ppwork.peers import naming_peers
from ppwork.topology import GROUP_ORDER, LEADER_GROUP_RANK, LEADER_RANK, Role, Topology

if TYPE_CHECKING:
    from ppwork.plan import Plan

STORE_VARIABLE = "PPWORK_STORE"
"""Path of our launcher's file store: nothing then listens beyond loopback. Unset: torchrun's store."""

SHARED_GPU_ENVIRONMENT = {
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_NET": "Socket",
    "NCCL_IB_DISABLE": "1",
    "NCCL_MNNVL_ENABLE": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_MAX_CTAS": "4",
    "CUDA_MODULE_LOADING": "EAGER",
}
"""With a distinct NCCL_HOSTID per rank this lets several ranks share one GPU: functional only, never fast."""


def bring_up_timeout_s(plan: Plan) -> float:
    """Return the bound on every wait: the plan's, unless ``SCOPE_DIST_TIMEOUT_S`` overrides it.

    Raises:
        PlanError: The variable is not a positive number (every rank that has it).
    """
    text = os.environ.get("SCOPE_DIST_TIMEOUT_S")
    if text is None:
        return plan.timeout_s
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < 86_400:
        raise PlanError(
            f"SCOPE_DIST_TIMEOUT_S was {text!r}; it must be a number of seconds above 0.",
            check_first="unset it to use the plan's timeout_s",
        )
    return seconds


def pick_device(plan: Plan, rank: int, local_rank: int) -> torch.device:
    """Choose and set this rank's device; must run before anything else touches CUDA.

    Raises:
        PlanError: NCCL was asked for and this host has no CUDA device of index ``local_rank``.
    """
    if plan.backend == "gloo" or (plan.backend == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if plan.share_gpu:
        os.environ.update({**SHARED_GPU_ENVIRONMENT, "NCCL_HOSTID": f"ppwork-{rank}"})
    index = 0 if plan.share_gpu else local_rank
    count = torch.cuda.device_count()
    if index >= count:
        raise PlanError(
            f"Rank {rank} needed cuda:{index}, but this host has {count} CUDA devices.",
            where={"rank": rank},
            check_first="--backend gloo needs no GPU; --share-gpu puts all ranks on one, for teaching",
        )
    # One order of launches on the host for all communicators of a device (rule R7).
    os.environ.setdefault("NCCL_LAUNCH_ORDER_IMPLICIT", "1")
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def open_store(rank: int, world_size: int, timeout_s: float) -> Store:
    """Return the store of this job, under a prefix of this attempt so that a restart never reads old keys."""
    path = os.environ.get(STORE_VARIABLE)
    if path:
        store: Store = dist.FileStore(path, world_size)  # type: ignore[attr-defined]
    else:
        store, _, _ = next(iter(rendezvous("env://", rank, world_size, timeout=timedelta(seconds=timeout_s))))
    store.set_timeout(timedelta(seconds=timeout_s))
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"ppwork/{attempt}", store)


def gather(store: Store, key: str, value: bytes, rank: int, world_size: int) -> list[bytes]:
    """Exchange one value per rank, UTF-8 text, through the store.

    Raises:
        PeerTimeoutError: Some ranks did not come within the store's timeout; names them (every rank
            that came).

    Blocks:
        Until every rank has called it with the same key.
    """
    store.set(f"{key}/{rank}", value.decode())
    values: list[bytes] = []
    for peer in range(world_size):
        try:
            values.append(store.get(f"{key}/{peer}"))
        except RuntimeError as error:  # DistStoreError; DistNetworkError when the store's host is gone
            missing = [r for r in range(peer, world_size) if not _has(store, f"{key}/{r}")]
            raise PeerTimeoutError(
                f"Ranks {missing} did not reach {key!r} at start-up in time.",
                where={"rank": rank, "peer": peer},
                check_first="the logs of those ranks: did they start, and did they fail before this?",
            ) from error
    return values


def _has(store: Store, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except RuntimeError:  # the store is gone: nobody can be said to have come
        return False


@dataclass
class Groups:
    """This rank's live groups.

    Attributes:
        device: Where this rank computes.
        timeout_s: Bound on every wait, in seconds.
    """

    topology: Topology
    rank: int
    device: torch.device
    timeout_s: float
    store: Store
    _handles: dict[str, Any] = field(default_factory=dict)

    @property
    def role(self) -> Role:
        """What this rank does."""
        return self.topology.role(self.rank)

    def __getitem__(self, name: str) -> dist.ProcessGroup:
        """Return a group's handle.

        Raises:
            LocalProtocolError: This rank is not in the group (rule R6).
        """
        if self.rank not in self.topology.ranks(name):
            raise LocalProtocolError(
                f"Rank {self.rank} asked for {name}, whose ranks are {self.topology.ranks(name)}.",
                where={"rank": self.rank, "role": str(self.role), "group": name},
                check_first="rank 0 helps to create mesh_pg and tp_pg and never uses them",
            )
        handle: dist.ProcessGroup = self._handles[name]
        return handle

    def handles(self) -> dict[str, Any]:
        """Return all handles by name, also of groups that this rank is not in (guards compare them)."""
        return dict(self._handles)

    def sync(self, key: str) -> None:
        """Wait until every rank has come to ``key``; see ``gather``."""
        gather(self.store, key, b"", self.rank, self.topology.world_size)

    def close(self) -> None:
        """Leave: ``destroy_process_group`` on this rank (rule R10).

        Collective:
            All groups, all ranks, after SHUTDOWN was acknowledged.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._handles.clear()
        dist.destroy_process_group()


def join(plan: Plan, *, rank: int, local_rank: int, world_size: int) -> Groups:
    """Bring this rank up: device, parity, groups, warm edges.

    Args:
        plan: What all ranks must agree on.
        rank: Global rank, from torchrun's ``RANK``.
        local_rank: Rank on this host; the CUDA device's index.
        world_size: torchrun's ``WORLD_SIZE``.

    Raises:
        PlanError: World size or device do not fit the plan (every rank, after parity).
        ParityError: Ranks differ in plan or environment (every rank, same text).
        PeerTimeoutError: A rank did not come in time (every rank that came).

    Collective:
        ``world_pg``, then each of ``GROUP_ORDER``: all ranks.

    Blocks:
        Until all ranks have come; at most the plan's ``timeout_s`` for each step.
    """
    device = pick_device(plan, rank, local_rank)
    timeout_s = bring_up_timeout_s(plan)
    store = open_store(rank, world_size, timeout_s)
    facts = facts_of(plan, os.environ, **{"version.torch": str(torch.__version__), "device": device.type})
    raw = gather(store, "parity", encode_facts(facts), rank, world_size)
    check_parity([decode_facts(one) for one in raw])
    if world_size != plan.world_size:
        raise PlanError(
            f"{world_size} ranks were started; the plan's mesh of {plan.mesh_size} needs {plan.world_size}.",
            where={"rank": rank},
            check_first=f"torchrun --nproc-per-node {plan.world_size}",
        )
    timeout = timedelta(seconds=timeout_s)
    on_cuda = device.type == "cuda"
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
        store=PrefixStore("groups", store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if on_cuda else None,
    )
    topology = plan.topology
    handles: dict[str, Any] = {"world_pg": dist.group.WORLD}
    for name in GROUP_ORDER:
        handles[name] = dist.new_group(list(topology.ranks(name)), timeout=timeout, group_desc=name)
    groups = Groups(topology, rank, device, timeout_s, store, handles)
    warm_up(groups)
    return groups


def warm_up(groups: Groups) -> None:
    """Use every edge once, in one order everywhere, so that no first chunk pays for a connection.

    Collective:
        ``down_pg``, ``up_pg`` (ranks 0 and 1), then ``mesh_pg``, ``tp_pg`` (the mesh).
    """
    devices = [torch.device("cpu")] + ([groups.device] if groups.device.type == "cuda" else [])
    for device in devices:
        token = torch.ones(64, dtype=torch.uint8, device=device)
        for name, sender in (("down_pg", 0), ("up_pg", LEADER_RANK)):
            if groups.rank not in groups.topology.ranks(name):
                continue
            with naming_peers("warm-up", rank=groups.rank, group=name, peer=1 - groups.rank):
                if groups.rank == sender:
                    dist.send(token, group=groups[name], group_dst=1 - groups.rank)
                else:
                    dist.recv(token, group=groups[name], group_src=1 - groups.rank)
        if groups.role is not Role.STAGE0 and groups.topology.mesh_size > 1:
            with naming_peers("warm-up", rank=groups.rank, group="mesh_pg"):
                dist.broadcast(token, group=groups["mesh_pg"], group_src=LEADER_GROUP_RANK)
            with naming_peers("warm-up", rank=groups.rank, group="tp_pg"):
                dist.all_reduce(torch.ones(64, device=device), group=groups["tp_pg"])
    if groups.device.type == "cuda":
        torch.cuda.synchronize(groups.device)
