"""Live process groups: device, parity, groups, warm links; and how a rank leaves them.

Every rank makes every group, in ``topology.GROUP_ORDER``, before anything is sent (rule R6). Only this module
knows which backend carries what: gloo the CPU bytes, NCCL the CUDA tensors, both under one handle.

gloo accepts anybody who reaches a rank's port and guesses a small number; a stranger who connects before the
peer takes the peer's place. So each link starts with a token that only the ranks of this run can make, from a
secret of the run. This exchange also makes the connection, so no chunk pays for it. Our launcher's store is a
file that no other user can read, and it holds the secret. torchrun's store is open to all who reach it: over
several hosts our launcher sends the secret to each host by its pipe, and ranks sign their facts with it.

In a job that has its own default group (``membership``) a pipeline adds its groups. Only the members of a
group make it, in one order, under a name that no other pipeline or session has: torch's own names depend on
how many groups a process has made, and that may differ between the ranks of a job.
"""

from __future__ import annotations

import atexit
import hashlib
import hmac
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.distributed_c10d import PrefixStore, Store

from ppwork.errors import LocalProtocolError, PeerTimeoutError, PlanError, RemoteProtocolError, listed
from ppwork.process import hold_torchrun
from ppwork.protocol.backend_errors import naming_peers
from ppwork.protocol.bounds import bring_up_timeout_s
from ppwork.protocol.parity import check_parity, decode_facts, encode_facts, facts_of
from ppwork.protocol.plan import SECRET_VARIABLE, PipelinePlan
from ppwork.protocol.topology import GROUP_ORDER, LEADER_GROUP_RANK, LEADER_RANK, Role, Topology, other_end
from ppwork.runtime import nccl
from ppwork.runtime.device import pick_device, versions_of
from ppwork.runtime.membership import Membership, gather, open_store
from ppwork.runtime.process_exit import leave_hard, leave_hard_if_uncaught

TOKEN_BYTES = 64


@dataclass
class Groups:
    """This rank's live groups.

    Attributes:
        device: Device on which this rank computes.
        timeout_s: Bound on every wait, in seconds.
        store: Store of this pipeline and session.
        membership: This process's place in the job; ``None`` if ranks are threads.
        mesh: The caller's ``DeviceMesh``; its group is ``tp_pg``, and outlives the session.
    """

    topology: Topology
    rank: int
    device: torch.device
    timeout_s: float
    store: Store
    _handles: dict[str, Any] = field(default_factory=dict)
    membership: Membership | None = None
    mesh: DeviceMesh | None = None
    _mesh_timeout: timedelta | None = None

    @property
    def role(self) -> Role:
        """The part that this rank plays."""
        return self.topology.role(self.rank)

    def __getitem__(self, name: str) -> dist.ProcessGroup:
        """Return a group's handle.

        Raises:
            LocalProtocolError: This rank is not in the group (rule R6), no group has this name, or the groups
                are closed.
        """
        if not self._handles:
            raise LocalProtocolError(
                f"Rank {self.rank} asked for {name} of a session that has ended.",
                where={"rank": self.rank, "role": str(self.role), "group": name},
                check_first="a stage that outlives its session takes `tp` from the new one's context",
            )
        if name not in self._handles:
            raise LocalProtocolError(
                f"Rank {self.rank} asked for the group {name!r}; a pipeline has {listed(self._handles)}.",
                where={"rank": self.rank, "role": str(self.role)},
                check_first="the mesh's, for collectives of your own, is tp_pg",
            )
        if self.rank not in self.topology.ranks(name):
            raise LocalProtocolError(
                f"Rank {self.rank} asked for {name}, whose ranks are {self.topology.ranks(name)}.",
                where={"rank": self.rank, "role": str(self.role), "group": name},
                check_first="rank 0 helps to create mesh_pg and tp_pg and never uses them",
            )
        handle: dist.ProcessGroup = self._handles[name]
        return handle

    def handles(self) -> dict[str, Any]:
        """Return all handles by name, even of groups that this rank is not in (guards compare them)."""
        return dict(self._handles)

    @property
    def uses_gpu(self) -> bool:
        """Whether this rank may wait for a GPU: its own, or one of the caller's ``DeviceMesh``."""
        return "cuda" in (self.device.type, self.mesh.device_type if self.mesh is not None else "")

    @cached_property
    def device_mesh(self) -> DeviceMesh:
        """The mesh ranks as a ``DeviceMesh`` of one dimension, for DTensor and ``parallelize_module``.

        If ``join`` was given a ``DeviceMesh``, this is the same one.

        Raises:
            LocalProtocolError: This rank is rank 0, which is not in the mesh.

        Collective:
            None: it is made from ``tp_pg``.
        """
        tp = self["tp_pg"]
        if self.mesh is not None:
            return self.mesh
        return DeviceMesh.from_group(tp, self.device.type, mesh_dim_names=("tp",))

    def close(self) -> None:
        """Leave: ``destroy_process_group`` on this rank (rule R10); the caller's own groups stay.

        Collective:
            All groups, all ranks, after SHUTDOWN was acknowledged.
        """
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        handles, self._handles = self._handles, {}
        self.__dict__.pop("device_mesh", None)
        if self.mesh is not None and (tp := handles.pop("tp_pg", None)) is not None:
            c10d._set_pg_timeout(self._mesh_timeout, tp)  # type: ignore[arg-type]  # set with ``mesh``
        if self.membership is None:
            return  # both ranks are one process: torch knows no groups
        if self.membership.in_group:
            for handle in reversed(list(filter(None, handles.values()))):
                dist.destroy_process_group(handle)
        elif dist.is_initialized():
            dist.destroy_process_group()
        del self.store
        self.membership.end()

    def abandon(self) -> None:
        """Close the groups of a failed start; NCCL's stay open: they may wait for a peer, also at exit."""
        if self.device.type == "cpu":
            with suppress(Exception):  # the start's own error is the one to report
                self.close()
        else:
            leave_hard_if_uncaught()
            atexit.register(leave_hard)


class TPGroup:
    """The mesh of one of its ranks: size and place, group, ``DeviceMesh``, and the sum over it.

    Attributes:
        size: Number of mesh ranks.
        group_rank: This rank's place in the mesh, 0 for the leader.
    """

    def __init__(self, groups: Groups) -> None:
        self.size = groups.topology.mesh_size
        self.group_rank = groups.topology.mesh_ranks.index(groups.rank)
        self._groups = groups

    @property
    def group(self) -> dist.ProcessGroup:
        """The mesh's process group, for collectives of one's own, which all mesh ranks make.

        Raises:
            LocalProtocolError: The session has ended (this mesh rank).
        """
        return self._groups["tp_pg"]

    @property
    def device_mesh(self) -> DeviceMesh:
        """The mesh ranks as torch's ``DeviceMesh`` of one dimension; see ``Groups.device_mesh``."""
        return self._groups.device_mesh

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over the mesh, in place, and return it; ``stage.TensorParallel`` says more of it.

        Raises:
            LocalProtocolError: In a compared chunk, another mesh rank was about to make another call (every
                mesh rank, before the backend was called).
            PeerLostError, PeerTimeoutError: Another mesh rank is gone or silent (the remaining ranks).
        """
        if self.size == 1:
            return tensor
        with naming_peers("all_reduce", rank=self._groups.rank, role=str(self._groups.role), group="tp_pg"):
            dist.all_reduce(tensor, group=self.group)
        return tensor


def join(
    plan: PipelinePlan,
    membership: Membership,
    mesh: DeviceMesh | None = None,
    run_dir: str = "none",
    *,
    keep_failed: bool = False,
) -> Groups:
    """Bring this rank up: device, parity, groups, warm links. After this the rank dies with its torchrun.

    Args:
        plan: The plan that all ranks must agree on.
        membership: ``Membership.here()``.
        mesh: The mesh ranks as a ``DeviceMesh`` of one dimension, given on each of them; its group is then
            ``tp_pg``, with the plan's bound until the groups are closed. Rank 0's argument is ignored. It is
            of the plan's device, or, beside links on the CPU, of GPUs.
        run_dir: A word that says whether this rank has a run folder: all ranks have one, or none.
        keep_failed: If the start fails, keep its groups until the process ends, so that the peers notice only
            after this rank has written its record. Else close them, and the process may join again.

    Raises:
        PlanError: World size, device, driver, a variable or ``mesh`` do not fit the plan (every rank, after
            parity); too few devices (the ranks of that host); as ``Membership.begin`` (that rank, at once).
        ParityError: Ranks differ in plan, environment or ``run_dir`` (every rank, same text).
        PeerTimeoutError: A rank did not come in time (every rank that came).
        RemoteProtocolError: A stranger has taken a peer's place (the rank that talks to the stranger).

    Collective:
        ``world_pg``, then each of ``GROUP_ORDER``: all ranks.

    Blocks:
        Until all ranks have come; at most the plan's ``timeout_s`` for each step.
    """
    session = membership.begin()
    hold_torchrun()
    try:
        agreed = _agree(plan, membership, session, mesh, run_dir)
    except BaseException:
        membership.end()
        raise
    mine = mesh if membership.rank else None
    groups = Groups(plan.topology, membership.rank, *agreed, {}, membership, mine)
    try:
        _bring_up(plan, groups, membership, session)
    except BaseException:
        if not keep_failed:
            groups.abandon()
        raise
    return groups


def _agree(
    plan: PipelinePlan, membership: Membership, session: int, mesh: DeviceMesh | None, run_dir: str
) -> tuple[torch.device, float, Store]:
    """Return this rank's device, bound and store, once all ranks agree; no group exists yet."""
    rank, world_size = membership.rank, membership.world_size
    ranks_here = int(os.environ.get("LOCAL_WORLD_SIZE", world_size))
    device = pick_device(plan, rank, membership.local_rank, ranks_here)
    sequential = nccl.sequential(os.environ) if plan.in_flight_depth > 1 and device.type == "cuda" else None
    timeout_s = bring_up_timeout_s(plan)
    store = open_store(membership, session, timeout_s)
    here = {"version.torch": str(torch.__version__), "device": device.type, "sequential": sequential}
    here |= versions_of(device)
    here |= {"run_dir": run_dir, "mesh": None if rank == 0 else _described(mesh)}
    facts = facts_of(plan, os.environ, **here)
    secret = given_secret()
    try:
        signed = sign(secret, rank, encode_facts(facts))
        raw_by_rank = gather(store, "parity", signed, rank, world_size, membership.has_lost)
    except PeerTimeoutError as error:
        raise membership.explained(error, store) from None
    facts_by_rank = [decode_facts(signed_by(secret, peer, raw)) for peer, raw in enumerate(raw_by_rank)]
    facts_by_rank[0]["mesh"] = facts_by_rank[-1]["mesh"]  # rank 0 is not in the mesh
    check_parity(facts_by_rank)
    if world_size != plan.world_size:
        raise PlanError(
            f"{world_size} ranks were started; the plan's mesh of {plan.mesh_size} needs {plan.world_size}.",
            where={"rank": rank},
            check_first=f"torchrun --nproc-per-node {plan.world_size}",
        )
    wanted = f"{device.type}{list(membership.ranks[1:])}"
    # Beside links on the CPU the mesh may sum on GPUs: its group has both, and rank 0 needs no GPU.
    on_gpus = wanted.replace("cpu", "cuda")
    if (given := facts_by_rank[-1]["mesh"]) not in (None, wanted, on_gpus):
        raise PlanError(
            f"The DeviceMesh given was {given}; this pipeline's is {wanted}.",
            where={"rank": rank},
            check_first="a mesh of one dimension, of all ranks but the first: `mesh['tp']` of a larger one; "
            "on CUDA of init_process_group('cpu:gloo,cuda:nccl')",
        )
    if sequential is not None:
        raise PlanError(
            f"At depth {plan.in_flight_depth} the ranks could wait for each other: {sequential}.",
            where={"rank": rank},
            check_first="in_flight_depth 1 (--depth), to look for a CUDA error; unset it, or a newer driver",
        )
    return device, timeout_s, store


def _described(mesh: DeviceMesh | None) -> str | None:
    if mesh is None:
        return None
    # Ranks compare their coming collectives on the CPU side of the group.
    bare = mesh.ndim == 1 and mesh.get_coordinate() is not None and "gloo" not in _backends(mesh.get_group())
    return f"{mesh.device_type}{mesh.mesh.tolist()}{' without gloo' if bare else ''}"


def _backends(group: dist.ProcessGroup) -> str:
    return str(dist.get_backend_config(group))


def _bring_up(plan: PipelinePlan, groups: Groups, membership: Membership, session: int) -> None:
    """Make all groups and use them once."""
    timeout, handles = timedelta(seconds=groups.timeout_s), groups._handles
    rank, device, store = membership.rank, groups.device, groups.store
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if membership.in_group:
        prefix = f"ppwork/{'-'.join(map(str, membership.ranks))}/{session}"
        for name in ("world_pg", *GROUP_ORDER):
            members = [membership.ranks[member] for member in plan.topology.ranks(name)]
            if name == "tp_pg" and groups.mesh is not None:
                handles[name] = groups.mesh.get_group()
                cpu = handles[name]._get_backend(torch.device("cpu"))
                groups._mesh_timeout = cpu.options._timeout
                c10d._set_pg_timeout(timeout, handles[name])
            elif membership.job_rank in members:
                with _naming(f"{prefix}/{name}"):
                    handles[name] = dist.new_group(
                        members, timeout, backend, use_local_synchronization=True, group_desc=name
                    )
    else:
        dist.init_process_group(
            backend,
            store=PrefixStore("groups", store),
            rank=rank,
            world_size=membership.world_size,
            timeout=timeout,
            device_id=device if device.type == "cuda" else None,
        )
        membership.owns_default_group()
        handles["world_pg"] = dist.group.WORLD
        for name in GROUP_ORDER:
            ranks = list(plan.topology.ranks(name))
            groups._handles[name] = dist.new_group(ranks, timeout=timeout, group_desc=name)
    if (secret := given_secret()) is None:
        mine = secrets.token_hex(32).encode() if rank == 0 else b""
        secret = gather(store, "secret", mine, rank, membership.world_size)[0]
    warm_up(groups, secret)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Let torch give the next group this name: a job's ranks may have made different numbers of groups."""
    naming = c10d._process_group_name
    c10d._process_group_name = lambda *_, **__: name  # type: ignore[assignment]
    try:
        yield
    finally:
        c10d._process_group_name = naming


def given_secret() -> bytes | None:
    """Return the secret that our launcher gave this host; ``None``: the only secret is in the store.

    Raises:
        PlanError: The secret's file cannot be read (this rank).
    """
    if (path := os.environ.get(SECRET_VARIABLE)) is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        what = f"The run's secret {path} cannot be read: {error.strerror}."
        check = f"unset {SECRET_VARIABLE}: only a node of ppwork sets it"
        raise PlanError(what, check_first=check) from error


def sign(secret: bytes | None, rank: int, text: bytes) -> bytes:
    """Return the signature followed by the rank's text; without a secret, the text alone."""
    return text if secret is None else token(secret, b"parity " + text, rank).hex().encode() + text


def signed_by(secret: bytes | None, rank: int, signed: bytes) -> bytes:
    """Return the text that a rank has signed, after checking the signature.

    Raises:
        RemoteProtocolError: Somebody else made the text (the rank that reads it).
    """
    if secret is None:
        return signed
    text = signed[2 * TOKEN_BYTES :]
    if not hmac.compare_digest(sign(secret, rank, text), signed):
        raise RemoteProtocolError(
            f"What the store says of rank {rank} was not made by a rank of this run.",
            where={"peer": rank},
            check_first="who else reaches the store's port (`ss -tnp` on the first host)?",
        )
    return text


def token(secret: bytes, what: bytes, rank: int) -> bytes:
    """Return the ``TOKEN_BYTES`` bytes by which a rank proves itself: in a group, or before its text."""
    # Each link has its own token: a token seen on one link is useless on another.
    return hashlib.blake2b(what + f" {rank}".encode(), key=secret, digest_size=TOKEN_BYTES).digest()


def warm_up(groups: Groups, secret: bytes) -> None:
    """Use every link once, in the same order on all ranks.

    Args:
        groups: All groups, newly made.
        secret: The run's secret, from which the tokens are made.

    Raises:
        RemoteProtocolError: No rank of this run made the received token (the rank that received it).
        PeerLostError, PeerTimeoutError: A peer is gone or silent (the peer's peers).

    Collective:
        ``down_pg``, ``up_pg`` (ranks 0 and 1), then ``mesh_pg``, ``tp_pg`` (the mesh).
    """
    devices = [torch.device("cpu")] + ([groups.device] if groups.device.type == "cuda" else [])
    for device in devices:

        def of(name: str, rank: int, device: torch.device = device) -> torch.Tensor:
            return torch.tensor(list(token(secret, name.encode(), rank)), dtype=torch.uint8, device=device)

        for name, sender in (("down_pg", 0), ("up_pg", LEADER_RANK)):
            if groups.rank not in groups.topology.ranks(name):
                continue
            peer = other_end(groups.rank)  # also its rank in the group
            with naming_peers("warm-up", rank=groups.rank, group=name, peer=peer):
                if groups.rank == sender:
                    dist.send(of(name, sender), group=groups[name], group_dst=peer)
                else:
                    received = torch.zeros_like(of(name, sender))
                    dist.recv(received, group=groups[name], group_src=peer)
                    _prove(groups, name, received, of(name, sender), peer=sender)
        if groups.role is not Role.STAGE0 and groups.topology.mesh_size > 1:
            with naming_peers("warm-up", rank=groups.rank, group="mesh_pg"):
                received = of("mesh_pg", groups.rank)  # the leader broadcasts its own token
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
