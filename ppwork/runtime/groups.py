"""Live process groups: device, store, parity, groups, warm edges; and the way out.

Every rank makes every group, in ``topology.GROUP_ORDER``, before anything is sent (rule R6). This is the only
place that knows which backend carries what: gloo the CPU bytes, NCCL the CUDA tensors, both under one handle.

gloo lets anybody in who reaches a rank's port and guesses a small number; a stranger who is there before the
peer takes its place. So each edge is begun with a token that only the ranks of this run can make, from a
secret in the run's store; it also makes the connection, so that no chunk pays for one. Our launcher's store
is a file that no other user can read; torchrun's own is open to all who reach it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ppwork.errors import LocalProtocolError, PeerTimeoutError, PlanError, RemoteProtocolError
from ppwork.protocol.backend_errors import naming_peers
from ppwork.protocol.bounds import bring_up_timeout_s
from ppwork.protocol.parity import check_parity, decode_facts, encode_facts, facts_of
from ppwork.protocol.plan import STORE_VARIABLE, PipelinePlan
from ppwork.protocol.topology import GROUP_ORDER, LEADER_GROUP_RANK, LEADER_RANK, Role, Topology
from ppwork.runtime import nccl

TOKEN_BYTES = 64


def started_by_torchrun() -> tuple[int, int, int]:
    """Return this process's rank, its rank on this host, and the world size.

    Raises:
        PlanError: The environment does not have them (this process).
    """
    try:
        rank, local_rank, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    except KeyError as missing:
        raise PlanError(
            f"The environment has no {missing.args[0]}: torchrun has not started this process.",
            check_first="torchrun --standalone --nproc-per-node 3 and your script, for a mesh of 2",
        ) from None
    return rank, local_rank, world


def pick_device(plan: PipelinePlan, rank: int, local_rank: int, ranks_here: int) -> torch.device:
    """Choose and set this rank's device; must run before anything else touches CUDA.

    Raises:
        PlanError: NCCL was asked for, and this host has fewer CUDA devices than the plan needs for its
            ``ranks_here``, or none of index ``local_rank``.
    """
    if plan.backend == "gloo":
        return torch.device("cpu")
    if plan.share_gpu:
        os.environ.update(nccl.sharing_a_gpu(rank))
    nccl.turn(os.environ)
    try:
        if plan.backend_with(torch.cuda.device_count(), ranks_here) == "gloo":
            return torch.device("cpu")
    except PlanError as error:
        error.at(rank=rank)
        raise
    index = 0 if plan.share_gpu else local_rank
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def open_store(rank: int, world_size: int, timeout_s: float) -> Store:
    """Return the store of this job, under a prefix of this run and attempt.

    A restart reads no keys of the attempt before, nor a run those of another one in a store file that was
    left behind (F21). Without torchrun runs cannot be told apart; then what was left is refused.

    Raises:
        PlanError: The port that torchrun's variables name cannot be opened (rank 0); or this rank has been in
            the store before, because the file was left by a crash or two ranks have one number (that rank).
        PeerTimeoutError: Nobody answers at that port (other ranks).
    """
    path = os.environ.get(STORE_VARIABLE)
    if path:
        store: Store = dist.FileStore(path, world_size)  # type: ignore[attr-defined]
    else:
        store = _torchruns_store(rank, world_size, timeout_s)
    store.set_timeout(timedelta(seconds=timeout_s))
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"ppwork/{run_id}/{attempt}", store)
    if _has(store, f"came/{rank}"):
        raise PlanError(
            f"Rank {rank} has been in the store {path or 'at MASTER_ADDR'} before.",
            where={"rank": rank},
            check_first=f"was it left by another run? give all ranks a new {STORE_VARIABLE}; "
            f"or do two ranks have RANK={rank}?",
        )
    store.set(f"came/{rank}", "")
    return store


def _torchruns_store(rank: int, world_size: int, timeout_s: float) -> Store:
    try:
        opened = rendezvous("env://", rank, world_size, timeout=timedelta(seconds=timeout_s))
        store: Store = next(iter(opened))[0]
    except dist.DistNetworkError as error:
        port = os.environ.get("MASTER_PORT")
        text = str(error).partition("\n")[0]
        what = f"The store at {os.environ.get('MASTER_ADDR')}:{port} could not be opened: {text}"
        if rank == 0:
            check = f"is port {port} in use (`ss -ltnp`)? give all ranks another MASTER_PORT"
            raise PlanError(what, where={"rank": rank}, check_first=check) from error
        check = f"rank 0's log: did it open port {port}, or does somebody else listen there?"
        raise PeerTimeoutError(what, where={"rank": rank, "peer": 0}, check_first=check) from error
    return store


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
        """The part that this rank plays."""
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

    @cached_property
    def device_mesh(self) -> DeviceMesh:
        """The mesh ranks as a ``DeviceMesh`` of one dimension, for DTensor and ``parallelize_module``.

        Raises:
            LocalProtocolError: This rank is rank 0, which is not in the mesh.

        Collective:
            None: it is made of ``tp_pg``.
        """
        return DeviceMesh.from_group(self["tp_pg"], self.device.type, mesh_dim_names=("tp",))

    def close(self) -> None:
        """Leave: ``destroy_process_group`` on this rank (rule R10).

        Collective:
            All groups, all ranks, after SHUTDOWN was acknowledged.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self._handles.clear()
        if dist.is_initialized():  # not where both ranks are one process: torch knows none of its groups
            dist.destroy_process_group()


def join(plan: PipelinePlan, *, rank: int, local_rank: int, world_size: int) -> Groups:
    """Bring this rank up: device, parity, groups, warm edges.

    Args:
        plan: What all ranks must agree on.
        rank: Global rank, from torchrun's ``RANK``.
        local_rank: Rank on this host; the CUDA device's index.
        world_size: torchrun's ``WORLD_SIZE``.

    Raises:
        PlanError: World size, device, driver or a variable do not fit the plan (every rank, after parity);
            too few devices (the ranks of that host, at once); somebody has called ``init_process_group``
            (that rank, at once).
        ParityError: Ranks differ in plan or environment (every rank, same text).
        PeerTimeoutError: A rank did not come in time (every rank that came).
        RemoteProtocolError: A stranger has taken a peer's place (the rank that it talks to).

    Collective:
        ``world_pg``, then each of ``GROUP_ORDER``: all ranks.

    Blocks:
        Until all ranks have come; at most the plan's ``timeout_s`` for each step.
    """
    if dist.is_initialized():
        raise PlanError(
            f"Rank {rank} has a default process group already.",
            where={"rank": rank},
            check_first="leave `init_process_group` out: join makes the groups, from torchrun's environment",
        )
    device = pick_device(plan, rank, local_rank, int(os.environ.get("LOCAL_WORLD_SIZE", world_size)))
    on_cuda = device.type == "cuda"
    why_sequential = nccl.sequential(os.environ) if on_cuda and plan.in_flight_depth > 1 else None
    timeout_s = bring_up_timeout_s(plan)
    store = open_store(rank, world_size, timeout_s)
    here = {"version.torch": str(torch.__version__), "device": device.type, "sequential": why_sequential}
    facts = facts_of(plan, os.environ, **here)
    facts_by_rank = gather(store, "parity", encode_facts(facts), rank, world_size)
    check_parity([decode_facts(raw) for raw in facts_by_rank])
    if world_size != plan.world_size:
        raise PlanError(
            f"{world_size} ranks were started; the plan's mesh of {plan.mesh_size} needs {plan.world_size}.",
            where={"rank": rank},
            check_first=f"torchrun --nproc-per-node {plan.world_size}",
        )
    if why_sequential is not None:
        raise PlanError(
            f"At depth {plan.in_flight_depth} the ranks could wait for each other: {why_sequential}.",
            where={"rank": rank},
            check_first="--depth 1, which is where to look for a CUDA error; or unset it, or a newer driver",
        )
    timeout = timedelta(seconds=timeout_s)
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if on_cuda else "gloo",
        store=PrefixStore("groups", store),
        rank=rank,
        world_size=world_size,
        timeout=timeout,
        device_id=device if on_cuda else None,
    )
    groups = Groups(plan.topology, rank, device, timeout_s, store, {"world_pg": dist.group.WORLD})
    for name in GROUP_ORDER:
        ranks = list(plan.topology.ranks(name))
        groups._handles[name] = dist.new_group(ranks, timeout=timeout, group_desc=name)
    secret = secrets.token_hex(32).encode() if rank == 0 else b""
    warm_up(groups, gather(store, "secret", secret, rank, world_size)[0])
    return groups


def token(secret: bytes, group: str, rank: int) -> bytes:
    """Return the ``TOKEN_BYTES`` that a rank proves itself by in this group."""
    # One for each edge: a token that was shown on one is of no use on another.
    return hashlib.blake2b(f"{group} {rank}".encode(), key=secret, digest_size=TOKEN_BYTES).digest()


def warm_up(groups: Groups, secret: bytes) -> None:
    """Use every edge once, in one order everywhere.

    Args:
        groups: All of them, new.
        secret: The run's, which the tokens are made of.

    Raises:
        RemoteProtocolError: What came was not made by a rank of this run (the rank that it came to).
        PeerLostError, PeerTimeoutError: A peer is gone or silent (its peers).

    Collective:
        ``down_pg``, ``up_pg`` (ranks 0 and 1), then ``mesh_pg``, ``tp_pg`` (the mesh).
    """
    devices = [torch.device("cpu")] + ([groups.device] if groups.device.type == "cuda" else [])
    for device in devices:

        def of(name: str, rank: int, device: torch.device = device) -> torch.Tensor:
            return torch.tensor(list(token(secret, name, rank)), dtype=torch.uint8, device=device)

        for name, sender in (("down_pg", 0), ("up_pg", LEADER_RANK)):
            if groups.rank not in groups.topology.ranks(name):
                continue
            with naming_peers("warm-up", rank=groups.rank, group=name, peer=1 - groups.rank):
                if groups.rank == sender:
                    dist.send(of(name, sender), group=groups[name], group_dst=1 - groups.rank)
                else:
                    received = torch.zeros_like(of(name, sender))
                    dist.recv(received, group=groups[name], group_src=1 - groups.rank)
                    _prove(groups, name, received, of(name, sender), peer=sender)
        if groups.role is not Role.STAGE0 and groups.topology.mesh_size > 1:
            with naming_peers("warm-up", rank=groups.rank, group="mesh_pg"):
                received = of("mesh_pg", groups.rank)  # the leader's own is the one that goes round
                dist.broadcast(received, group=groups["mesh_pg"], group_src=LEADER_GROUP_RANK)
                _prove(groups, "mesh_pg", received, of("mesh_pg", LEADER_RANK), peer=LEADER_RANK)
            with naming_peers("warm-up", rank=groups.rank, group="tp_pg"):
                total = of("tp_pg", groups.rank).float()
                dist.all_reduce(total, group=groups["tp_pg"])
                tokens = [of("tp_pg", rank).float() for rank in groups.topology.mesh_ranks]
                _prove(groups, "tp_pg", total, torch.stack(tokens).sum(0))
    if groups.device.type == "cuda":
        torch.cuda.synchronize(groups.device)


def _prove(
    groups: Groups, name: str, received: torch.Tensor, expected: torch.Tensor, peer: int | None = None
) -> None:
    if not torch.equal(received, expected):
        raise RemoteProtocolError(
            f"What came over {name} at start-up was not made by a rank of this run.",
            where={"rank": groups.rank, "role": str(groups.role), "group": name, "peer": peer},
            check_first="does another program on this host connect to the ports of the ranks?",
        )
