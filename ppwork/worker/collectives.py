"""Stage 1's collectives: the sum over ``tp_pg``, and the guards that stand before the backend.

A collective that names the wrong group, or none, is the classic hang: rank 0 is in the default group and
never comes. While stage code runs, such a call raises before the backend is reached (rule R6).

A collective that not all mesh ranks make, or not with the same tensor, is the other one. In the chunks that
``tally`` says, mesh ranks therefore exchange what they are about to call, and a difference raises on all of
them. Only calls through ``TPGroup`` are seen: stage code that gets hold of ``tp_pg`` itself passes
``only_group`` and is not compared.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ppwork.errors import LocalProtocolError
from ppwork.protocol.backend_errors import naming_peers
from ppwork.protocol.envelope import ChunkPlan, PPEnvelope
from ppwork.runtime.groups import Groups
from ppwork.runtime.tensors import dtype_name
from ppwork.worker.tally import CollectiveCall, Tally, compare_calls

QUERIES = ("get_backend_config", "get_backend", "_set_pg_timeout", "get_rank", "get_world_size")
"""Callers of the membership test that talk to nobody; torch asks them itself when it logs an exception."""

_inside = threading.local()


class TPGroup:
    """``TensorParallel`` of ``ppwork.stage`` over ``tp_pg``; the tally says which sums are compared."""

    def __init__(self, groups: Groups, tally: Tally) -> None:
        self.size = groups.topology.mesh_size
        self.group_rank = groups.topology.mesh_ranks.index(groups.rank)
        self._groups, self._tally = groups, tally
        self._handle = groups["tp_pg"]

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the mesh, in place; see ``TensorParallel.all_reduce``.

        Raises:
            LocalProtocolError: In a compared chunk, another mesh rank was about to do something else (every
                mesh rank, before the backend was called).
            PeerLostError, PeerTimeoutError: Another mesh rank is gone or silent (the ranks that are left).
        """
        if self.size == 1:
            return tensor
        self._tally.collectives += 1
        if self._tally.comparing:
            compare(self._groups, self._tally, f"all_reduce {dtype_name(tensor.dtype)}{list(tensor.shape)}")
        with naming_peers("all_reduce", rank=self._groups.rank, role=str(self._groups.role), group="tp_pg"):
            dist.all_reduce(tensor, group=self._handle)
        return tensor


def exchange(groups: Groups, raw: bytes) -> list[bytes]:
    """Show the mesh ranks some bytes, and return what each of them showed, in group-rank order.

    Args:
        groups: This rank's; in a mesh of one nobody is asked.
        raw: As many bytes on every mesh rank.

    Collective:
        ``tp_pg``, all mesh ranks, on the CPU side of the group: a GPU is not waited for.

    Blocks:
        Until every mesh rank has come; at most the group's timeout.

    Raises:
        PeerLostError, PeerTimeoutError: Another mesh rank is gone or silent (the ranks that are left).
    """
    size = groups.topology.mesh_size
    if size == 1:
        return [raw]
    mine = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    rows = torch.empty(size, len(raw), dtype=torch.uint8)
    with naming_peers("comparison", rank=groups.rank, role=str(groups.role), group="tp_pg"):
        dist.all_gather(list(rows.unbind()), mine, group=groups["tp_pg"])
    return [row.numpy().tobytes() for row in rows]


def compare(groups: Groups, tally: Tally, operation: str) -> None:
    """Compare what all mesh ranks are about to do; no operation is the end of the chunk.

    Collective, Blocks: As ``exchange``.

    Raises:
        LocalProtocolError: They are not about to do the same (every mesh rank, with the same text).
    """
    calls = [CollectiveCall.from_bytes(raw) for raw in exchange(groups, tally.call(operation).to_bytes())]
    if (difference := compare_calls(calls, groups.topology.mesh_ranks)) is not None:
        what, check_first = difference
        raise LocalProtocolError(what, where={"group": "tp_pg", **tally.where()}, check_first=check_first)


@contextmanager
def counting(groups: Groups, tally: Tally, envelope: PPEnvelope) -> Iterator[ChunkPlan]:
    """Count what stage 1 does while the body computes this chunk by its plan, and compare it if that is due.

    The last comparison is of the chunk's end: a rank with fewer collectives is caught there, before the
    result leaves and before the others' next call meets one of another chunk.

    Collective, Raises: As ``compare``, if this chunk is compared; else none.
    """
    assert envelope.plan is not None, "the session lets no INFER pass without a plan"  # noqa: S101
    tally.begin(envelope.ids, envelope.plan)
    try:
        yield envelope.plan
        if tally.comparing:
            compare(groups, tally, "")
    finally:
        tally.end()


@contextmanager
def only_group(groups: Groups, name: str) -> Iterator[None]:
    """While the body runs on this thread, let collectives use group ``name`` only.

    Raises:
        LocalProtocolError: From the offending call, before the backend is called; names both groups
            (the rank that made the call).
    """
    _install()
    handle = groups[name]
    names = {id(h): group_name for group_name, h in groups.handles().items()}
    _inside.allowed = (handle, name, names, groups)
    try:
        yield
    finally:
        _inside.allowed = None


def _check(group: Any) -> None:  # noqa: ANN401  a ProcessGroup, None, or the non-member mark
    allowed = getattr(_inside, "allowed", None)
    if allowed is None:
        return
    handle, name, names, groups = allowed
    if group is handle:
        return
    used = "the default group (world_pg)" if group is None else names.get(id(group), "another group")
    raise LocalProtocolError(
        f"Stage code called a collective on {used}; inside stage 1 only {name} may be used.",
        where={"rank": groups.rank, "role": str(groups.role), "group": name},
        check_first="pass the group, or use context.tp.all_reduce, which does",
    )


def _install() -> None:
    """Hook the membership test that every collective makes first, once per process.

    It is private to torch but there in every supported version, and it sees calls whatever name they were
    imported under. ``tests/multiproc`` fails if a version drops it.
    """
    original = c10d._rank_not_in_group
    if getattr(original, "_ppwork", False):
        return

    def checked(group: Any) -> bool:  # noqa: ANN401
        if sys._getframe(1).f_code.co_name not in QUERIES:
            _check(group)
        return bool(original(group))

    checked._ppwork = True  # type: ignore[attr-defined]
    c10d._rank_not_in_group = checked
