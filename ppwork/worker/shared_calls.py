"""Compares a mesh rank's collectives with those of the host's other mesh ranks, before each call.

If one rank leaves a sum out, or makes it with another shape, the ranks add unrelated tensors: gloo checks
nothing. An exchange before each call finds this, but costs another collective. Ranks of one host need none:
each writes its next call into a file that the others have mapped (``records.ledger``), and then reads what
they wrote under the same number. The later rank sees both entries and raises, before it calls the backend and
before its result leaves. No rank waits. So if only the leader makes a call too few, that chunk's result may
already have left.

The entry at a chunk's end has a digest and the shapes of the rank's result: results that drift apart raise
nothing, the leader's result is sent, and the later rank warns.

This cannot see ranks of other hosts, or collectives that reach the backend past torch's own functions, as
those of DTensor and compiled code do. The first chunks are compared by an exchange, which sees those, too.
"""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, TypeAlias

import torch
import torch.distributed as dist

from ppwork.errors import LocalProtocolError
from ppwork.protocol.envelope import Ids
from ppwork.records.difference import RankDifference, chunk_until, difference_of
from ppwork.records.ledger import (
    CALL,
    COMPARE,
    ON_DEFAULT,
    RETURNED,
    SHAPES_BYTES,
    CollectiveCall,
    Ledger,
    line_of,
    packed,
    packed_site,
)
from ppwork.runtime.groups import Groups
from ppwork.runtime.tensors import digest_of, dtype_name
from ppwork.worker.user_lines import lines_from

SEEN = {
    **dict.fromkeys(("all_reduce", "broadcast", "reduce", "gather", "scatter"), "tensor"),
    **dict.fromkeys(("all_gather_into_tensor", "all_gather_single"), "input_tensor"),
    **dict.fromkeys(("reduce_scatter_tensor", "reduce_scatter_single", "all_to_all_single"), "input"),
    "all_gather": "tensor_list",
    "reduce_scatter": "input_list",
    "all_to_all": "input_tensor_list",
    "barrier": "",
}
"""Functions that all ranks of a group call, and the parameter that must be alike on all."""
MOST_SHOWN = 4
"""Elements of a small tensor given to ``compare`` whose values stand in the error, in place of a digest."""
SPLITS = ("input_split_sizes", "output_split_sizes")
"""Parameters that let each rank pass a tensor of its own size."""
SUM = dist.ReduceOp.SUM
ROOTS = {"broadcast": "from", "scatter": "from", "reduce": "to", "gather": "to"}
"""Functions with one rank that gives or takes, and the word for it."""
Alike: TypeAlias = tuple[tuple[torch.dtype, torch.Size | None], ...]
NOTHING = RETURNED.pack(0, b"")

_now = threading.local()


class SharedCalls:
    """This rank's calls on ``tp_pg``, chunk by chunk, and the calls of this host's other mesh ranks.

    Args:
        groups: Groups of this mesh rank.
        run_dir: Folder of the run, the same for all ranks.

    Raises:
        OSError: The ledger cannot be made (this rank).
    """

    def __init__(self, groups: Groups, run_dir: Path) -> None:
        self.rank, self._groups, self._run_dir = groups.rank, groups, run_dir
        self._own = Ledger(run_dir, groups.rank)
        self._others: dict[int, Ledger] = {}
        self._mesh_ranks = groups.topology.mesh_ranks
        self._missing = [rank for rank in groups.topology.mesh_ranks if rank != groups.rank]
        self._texts: dict[tuple[object, ...], bytes] = {}
        self._sites: dict[str, bytes] = {"": packed_site("")}
        self._site = ""
        self._group: object = None
        self._ids = Ids(0, 0, 0)
        self._number = self._count = 0
        self.shapes = ""
        """Of what this rank returned last."""
        self.told: set[int] = set()
        """Ranks for which the log has said that their results differ."""

    @property
    def alone(self) -> bool:
        """Whether no other mesh rank of this host is found."""
        self._look()
        return not self._others

    def _look(self) -> None:
        """Look for the ledgers of ranks that have not been found."""
        for rank in [*self._missing]:
            if (ledger := Ledger.of(self._run_dir, rank)) is not None:
                self._missing.remove(rank)
                if ledger.here:
                    self._others[rank] = ledger

    def begin(self, ids: Ids) -> None:
        """Count this thread's calls from now on as calls of this chunk."""
        self._look()
        self._ids, self._count, self._group = ids, 0, self._groups["tp_pg"]
        self._site = ""
        _now.calls = self

    def end(self, digest: int = 0, shapes: str = "", *, returns: str = "") -> dict[int, str]:
        """Record that the chunk has ended, with digest and shapes of its result from ``digests.sampled``.

        Args:
            digest: 0: there is no result to compare.
            shapes: As ``CollectiveCall.shapes``.
            returns: Site of the end if the chunk made no call; empty: the line of the caller.

        Returns:
            Mesh ranks of this host that have already ended the chunk, with another result, and its shapes.

        Raises:
            LocalProtocolError: As ``call``.
        """
        self.leave()
        self._site = self._site or returns or lines_from(sys._getframe(1))
        text = packed(shapes, SHAPES_BYTES)
        self.shapes = text.decode(errors="replace")  # as the others will read it
        return self._show(b"", RETURNED.pack(digest, text))

    def leave(self) -> None:
        """Stop comparing calls of this thread, and record nothing."""
        _now.calls = None

    def call(self, group: object, function: FrameType) -> None:
        """Compare a call with the other ranks' calls.

        Args:
            group: Any group. Only calls on ``tp_pg`` are compared, and calls on the default group if the job
                created that itself, because all mesh ranks are in it.
            function: The frame of torch's function.

        Raises:
            LocalProtocolError: Another mesh rank of this host was about to do something else (the later rank;
                the other ranks lose it as a peer, or see the same difference).
        """
        is_default = group is not self._group
        if is_default and group is not None and group is not dist.group.WORLD:
            return
        if (argument := SEEN.get(name := function.f_code.co_name)) is None:
            return
        given = function.f_locals
        tensors = alike(given.get(argument), sized=name != "all_to_all" and not any(map(given.get, SPLITS)))
        reduction = given.get("op")
        if reduction is SUM:  # its hash would cost as much as writing the line
            reduction = None
        root = given.get("group_src", given.get("group_dst")) if name != "gather" else None  # not yet known
        key = (name, reduction, root, is_default, tensors)
        if (text := self._texts.get(key)) is None:
            if len(self._texts) > 1000:  # the shape changes with every call
                self._texts.clear()
            said = operation(name, tensors, reduction, root, () if is_default else self._mesh_ranks)
            text = self._texts[key] = packed(f"{said} {ON_DEFAULT}" if is_default else said)
        self._count += 1
        self._site = lines_from(function.f_back)
        self._show(text)

    def state(self, operation: str) -> None:
        """Compare what this rank holds with the other ranks, as a call of this name; raises as ``call``."""
        self._count += 1
        self._site = lines_from(sys._getframe(1))
        self._show(packed(operation))

    def _show(self, text: bytes, returned: bytes = NOTHING) -> dict[int, str]:
        self._number += 1
        if (site := self._sites.get(self._site)) is None:
            site = self._sites[self._site] = packed_site(self._site)
        record = CALL.pack(self._ids.chunk_index, self._count, text) + returned + site
        line = line_of(self._number, record)
        self._own.write(self._number, line)  # before reading the others': of two ranks at once one sees both
        odd = {}
        for rank, ledger in self._others.items():
            if (theirs := ledger.differs(self._number, line)) is not None:
                mine = CollectiveCall.from_bytes(record)
                if theirs.anywhere != mine.anywhere:
                    raise self._differing(rank, theirs, mine)
                if mine.digest and theirs.digest:
                    odd[rank] = theirs.shapes
        return odd

    def _differing(self, peer: int, theirs: CollectiveCall, mine: CollectiveCall) -> LocalProtocolError:
        ledgers = {**self._others, self._groups.rank: self._own}
        written = {rank: ledger.calls() for rank, ledger in sorted(ledgers.items())}
        known = {rank: calls for rank, calls in written.items() if self._number in calls}
        chunks = {rank: chunk_until(calls, self._number) for rank, calls in known.items()}
        # By now the peer may be so many calls ahead that its ring has overwritten that entry.
        difference = difference_of(chunks) or difference_of({self.rank: [mine], peer: [theirs]})
        assert difference is not None, "their lines differ"  # noqa: S101
        where = {"rank": self._groups.rank, "role": str(self._groups.role), "group": "tp_pg"}
        return error_of(difference, {**where, "peer": peer, **self._ids.where()})

    def close(self) -> None:
        """Release all maps, and the group, which lives as long as it is referenced."""
        self.leave()
        self._group = None
        for ledger in (self._own, *self._others.values()):
            with contextlib.suppress(BufferError):
                ledger.close()


def error_of(difference: RankDifference, where: Mapping[str, Any]) -> LocalProtocolError:
    """Return the error of a rank that has seen a difference; it names all ranks that differ."""
    error = LocalProtocolError(difference.what, where=where, check_first=difference.check_first)
    error.between = difference.ranks
    return error


def alike(passed: Any, *, sized: bool) -> Alike:  # noqa: ANN401  what a program passed
    """Return dtype and shape of a tensor, or of those of a list, once each; ``sized``: with the shapes."""
    passed = passed[0] if isinstance(passed, list) and isinstance(next(iter(passed), None), list) else passed
    tensors = (each for each in (passed if isinstance(passed, list) else [passed]) if torch.is_tensor(each))
    return tuple({(each.dtype, each.shape if sized else None): None for each in tensors})


def held(name: str, tensor: torch.Tensor) -> str:
    """Return a tensor that ranks must hold alike as a call, so that they compare it as they compare calls."""
    kind = in_words(tensor.dtype, tensor.shape)
    exact = tensor.dtype in (torch.bool, torch.int32, torch.int64, torch.float32)
    is_shown = exact and tensor.numel() <= MOST_SHOWN
    content = f"= {tensor.tolist()}" if is_shown else f"with digest {digest_of(tensor):08x}"
    return f"{COMPARE}{name!r} {kind} {content}"


@lru_cache(256)
def in_words(dtype: torch.dtype, shape: torch.Size) -> str:
    """Return dtype and shape of a tensor: ``float32[4, 8]``."""
    return f"{dtype_name(dtype)}{list(shape)}"


def operation(
    name: str,
    tensors: Alike,
    reduction: object,
    root: int | None,
    ranks: Sequence[int] = (),
) -> str:
    """Return a collective in words: ``all_reduce(max) float32[4]``, ``broadcast(from rank 1) int64[]``.

    Args:
        name: Name of torch's function.
        tensors: Dtype and shape of what must be alike, from ``alike``.
        reduction: torch's ``ReduceOp``, or its name; a sum is not mentioned.
        root: The group rank that gives or takes.
        ranks: Ranks of the group, as the pipeline counts them; empty if it does not count them.
    """
    kind = getattr(reduction, "op", reduction)  # a ReduceOp with a factor has it inside
    how = (kind if isinstance(kind, str) else str(getattr(kind, "name", ""))).lower()
    more = [how] if how not in ("", "sum") else []
    if root is not None and name in ROOTS:
        known = 0 <= root < len(ranks)  # torch itself refuses other roots
        more.append(f"{ROOTS[name]} rank {ranks[root]}" if known else f"{ROOTS[name]} group rank {root}")
    said = f"{name}({', '.join(more)})" if more else name
    shown = (dtype_name(dtype) + ("" if shape is None else str(list(shape))) for dtype, shape in tensors)
    return " ".join((said, ", ".join(shown))).rstrip()


def calls_of_this_thread() -> SharedCalls | None:
    """Return the calls object to which this thread's collectives belong, if the thread computes a chunk."""
    return getattr(_now, "calls", None)
