"""Stage 1's collectives: the sum over ``tp_pg``, and the guard that keeps stage code off every other group.

A collective that names the wrong group, or none, is the classic hang: rank 0 is in the default group and
never comes. While stage code runs, such a call raises before the backend is reached (rule R6).
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
from ppwork.peers import naming_peers

if TYPE_CHECKING:
    from collections.abc import Iterator

    from ppwork.groups import Groups

QUERIES = ("get_backend_config", "get_backend", "_set_pg_timeout", "get_rank", "get_world_size")
"""Callers of the membership test that talk to nobody; torch asks them itself when it logs an exception."""

_inside = threading.local()


class MeshSum:
    """``TensorParallel`` of ``ppwork.stage`` over the live ``tp_pg``."""

    def __init__(self, groups: Groups) -> None:
        self.size = groups.topology.mesh_size
        self.group_rank = groups.topology.mesh_ranks.index(groups.rank)
        self.calls = 0
        """Collectives made so far, for logs and failure records."""
        self._groups = groups
        self._handle = groups["tp_pg"]

    def all_reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over the mesh, in place; see ``TensorParallel.all_reduce``.

        Raises:
            PeerLostError, PeerTimeoutError: Another mesh rank is gone or silent (the ranks that are left).
        """
        if self.size == 1:
            return tensor
        self.calls += 1
        with naming_peers("all_reduce", rank=self._groups.rank, role=str(self._groups.role), group="tp_pg"):
            dist.all_reduce(tensor, group=self._handle)
        return tensor


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
