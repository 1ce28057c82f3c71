"""Stage 1's collectives: the sum over ``tp_pg``, and the guards that stand before the backend.

A collective that names the wrong group, or none, is the classic hang: rank 0 is in the default group and
never comes. While stage code runs, such a call raises before the backend is reached (rule R6).

A collective that not all mesh ranks make, or not with the same tensor, is the other one. In the chunks that
``tally`` says, mesh ranks therefore exchange what they are about to call, and a difference raises on all of
them (``handshake``). Only calls through ``MeshSum`` are seen: stage code that gets hold of ``tp_pg`` itself
passes ``only_group`` and is not compared.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from ppwork.errors import LocalProtocolError
from ppwork.handshake import Call, difference
from ppwork.peers import naming_peers
from ppwork.tensors import dtype_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ppwork.envelope import PPEnvelope
    from ppwork.groups import Groups

QUERIES = ("get_backend_config", "get_backend", "_set_pg_timeout", "get_rank", "get_world_size")
"""Callers of the membership test that talk to nobody; torch asks them itself when it logs an exception."""

_inside = threading.local()


class MeshSum:
    """``TensorParallel`` of ``ppwork.stage`` over the live ``tp_pg``."""

    def __init__(self, groups: Groups) -> None:
        self.size = groups.topology.mesh_size
        self.group_rank = groups.topology.mesh_ranks.index(groups.rank)
        self._groups, self._tally = groups, groups.tally
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
            compare(self._groups, f"all_reduce {dtype_name(tensor.dtype)}{list(tensor.shape)}")
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
    every = torch.empty(size, len(raw), dtype=torch.uint8)
    with naming_peers("comparison", rank=groups.rank, role=str(groups.role), group="tp_pg"):
        dist.all_gather(list(every.unbind()), mine, group=groups["tp_pg"])
    return [row.numpy().tobytes() for row in every]


def compare(groups: Groups, operation: str) -> None:
    """Compare what all mesh ranks are about to do; collective and bounded as ``exchange``.

    Args:
        groups: This rank's.
        operation: The call, or empty for the end of the chunk.

    Raises:
        LocalProtocolError: They are not about to do the same (every mesh rank, with the same text).
    """
    mine = groups.tally.call(operation)
    every = [Call.from_bytes(raw) for raw in exchange(groups, mine.to_bytes())]
    found = difference(every, groups.topology.mesh_ranks)
    if found is not None:
        what, check_first = found
        where = {"group": "tp_pg", **groups.tally.where()}
        raise LocalProtocolError(what, where=where, check_first=check_first)


@contextmanager
def counting(groups: Groups, envelope: PPEnvelope) -> Iterator[None]:
    """Count what stage 1 does while the body computes this chunk, and compare it if the plan says so.

    The last comparison is of the chunk's end: a rank with fewer collectives is caught there, before the
    result leaves and before the others' next call meets one of another chunk.

    Collective, Raises: As ``compare``, if this chunk is compared; else none.
    """
    assert envelope.plan is not None, "the session lets no INFER pass without a plan"  # noqa: S101
    groups.tally.begin(envelope.ids, envelope.plan)
    try:
        yield
        if groups.tally.comparing:
            compare(groups, "")
    finally:
        groups.tally.end()


@contextmanager
def only_group(groups: Groups, name: str) -> Iterator[None]:
    """While the body runs on this thread, let collectives use group ``name`` only.

    Raises:
        LocalProtocolError: From the offending call, before the backend is called; names both groups
            (the rank that made the call).
    """
    _install()
    handle = groups[name]
    names = {id(h): known for known, h in groups.handles().items()}
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
