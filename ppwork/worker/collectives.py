"""Stage 1's collectives: the sum over ``tp_pg``, and the guards in front of the backend.

A collective that names the wrong group, or none, causes the classic hang: rank 0 is in the default group and
never joins. While stage code runs, such a call raises before it reaches the backend (rule R6). In a user's
own loop the same holds on the mesh between a chunk and its answer, and on rank 0 while chunks are on their
way; there the guards allow the job's own groups. Creating a group needs all ranks, and is refused as well.

The other classic hang is a collective that not all mesh ranks make, or not with the same tensor. So in the
chunks that ``tally`` chooses, mesh ranks exchange what they are about to call, and a difference raises on all
of them. In those chunks every collective is checked, even those of DTensor or compiled code. In the other
chunks, ranks of one host compare calls of torch's own functions (``shared_calls``), and the later rank
raises.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from functools import wraps
from traceback import walk_tb
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.utils._python_dispatch import TorchDispatchMode

from ppwork.errors import LocalProtocolError
from ppwork.protocol.backend_errors import naming_peers
from ppwork.protocol.envelope import ChunkPlan, PPEnvelope
from ppwork.protocol.topology import Role
from ppwork.records.difference import difference_of
from ppwork.records.ledger import RECORD_BYTES, CollectiveCall
from ppwork.records.spans import WhichChunk
from ppwork.runtime.groups import Groups, TPGroup
from ppwork.runtime.tensors import check_by_name
from ppwork.worker import operators
from ppwork.worker.backend_wait import ASKS, framed, lend
from ppwork.worker.shared_calls import ROOTS, SPLITS, alike, calls_of_this_thread, error_of, held, operation
from ppwork.worker.tally import Tally
from ppwork.worker.user_lines import line_from, lines_from, outwards

MOST_SHOWN = 64
"""Most calls of a chunk that mesh ranks show each other when they differ: the newest ones."""
QUERIES = ("get_backend_config", "get_backend", "_set_pg_timeout", "get_rank", "get_world_size")
"""Callers of the membership test that do not communicate; torch calls them when it logs an exception."""
MESSAGES = {"send": "dst", "recv": "src"}
"""Functions that wait for the other half of a message, and their argument that names its rank."""
OPERANDS = ("tensors", "input", "input_tensor", "input_tensors", "inputs", "input_list")
"""Parameters of torch's operators, of which each has at most one, that all ranks pass alike."""
WORDS = {"allreduce": "all_reduce", "allgather": "all_gather", "alltoall": "all_to_all", "_base": "_single"}
GIVES_HANDLES = ("all", "_all", "barrier", "broadcast", "gather", "reduce", "_reduce", "scatter")
"""Beginnings of the names of a group's methods that make a collective and return its handle."""
_inside = threading.local()


class Allowed(NamedTuple):
    """The group that collectives of this thread may use now; ``loop`` is the chunk of a user's own loop.

    On the mesh that is the chunk in hand, on rank 0 the oldest chunk on its way.
    """

    groups: Groups
    name: str | None
    handle: dist.ProcessGroup | None
    loop: WhichChunk | None = None

    @property
    def is_jobs(self) -> bool:
        """Whether the default group is the job's own, so that its use is the job's business."""
        return self.groups.membership is not None and self.groups.membership.in_group


class StageTPGroup(TPGroup):
    """``TensorParallel`` of ``ppwork.stage``: the mesh's group, and a comparison of what its ranks hold."""

    def compare(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Compare what every mesh rank must hold alike; see ``TensorParallel.compare``.

        Raises:
            LocalProtocolError: Another mesh rank holds another tensor (in a compared chunk every mesh rank,
                else the later one), or no chunk is being computed (this mesh rank).
            PeerLostError, PeerTimeoutError: As ``exchange``, in a compared chunk.
        """
        check_by_name(tensors)
        calls, tally = calls_of_this_thread(), getattr(_inside, "tally", None)
        if calls is None and tally is None:
            raise LocalProtocolError(
                "`tp.compare` was called while no chunk was computed.",
                where={"rank": self._groups.rank, "role": str(self._groups.role), "group": "tp_pg"},
                check_first="`replicated()` with `digests`: it compares what a constructor loads",
            )
        for name, tensor in tensors.items():
            if tally is not None and tally.comparing:
                tally.collectives += 1
                tally.site = lines_from(sys._getframe(1))
                with tally.showing():
                    compare(self._groups, tally, held(name, tensor))
            elif calls is not None:
                calls.state(held(name, tensor))


def exchange(groups: Groups, raw: bytes) -> list[bytes]:
    """Show some bytes to the mesh ranks, and return the bytes of each mesh rank, in group-rank order.

    Args:
        groups: This rank's groups; in a mesh of one there is no exchange.
        raw: The same number of bytes on every mesh rank.

    Collective:
        ``tp_pg``, all mesh ranks, on the CPU side of the group: this does not wait for a GPU.

    Blocks:
        Until every mesh rank has come; at most the group's timeout.

    Raises:
        PeerLostError, PeerTimeoutError: Another mesh rank is gone or silent (the remaining ranks).
    """
    size = groups.topology.mesh_size
    if size == 1:
        return [raw]
    mine = torch.frombuffer(bytearray(raw), dtype=torch.uint8)
    rows = torch.empty(size, len(raw), dtype=torch.uint8)
    what = "the comparison of what the mesh ranks are about to do"
    with naming_peers(what, rank=groups.rank, role=str(groups.role), group="tp_pg"):
        dist.all_gather(list(rows.unbind()), mine, group=groups["tp_pg"])
    return [row.numpy().tobytes() for row in rows]


def compare(groups: Groups, tally: Tally, operation: str) -> None:
    """Compare what all mesh ranks are about to do; an empty operation is the end of the chunk.

    Collective, Blocks: As ``exchange``; twice if they differ.

    Raises:
        LocalProtocolError: The ranks are about to do different things (every mesh rank, with the same text).
    """
    ranks, newest = groups.topology.mesh_ranks, tally.call(operation)
    calls = [CollectiveCall.from_bytes(raw) for raw in exchange(groups, newest.to_bytes())]
    if difference_of({rank: [call] for rank, call in zip(ranks, calls, strict=True)}) is None:
        tally.made.append(newest)
        return
    # The first difference may be at an earlier call that matched except for its line.
    made = b"".join(call.to_bytes() for call in tally.made[-MOST_SHOWN:])
    earlier = exchange(groups, made.ljust(MOST_SHOWN * RECORD_BYTES, b"\0"))
    chunks = {rank: [*_calls_in(raw), call] for rank, raw, call in zip(ranks, earlier, calls, strict=True)}
    difference = difference_of(chunks)
    assert difference is not None, "their newest calls differ"  # noqa: S101
    raise error_of(difference, {"group": "tp_pg", **tally.where()})


def _calls_in(raw: bytes) -> list[CollectiveCall]:
    parts = [raw[at : at + RECORD_BYTES] for at in range(0, len(raw), RECORD_BYTES)]
    return [CollectiveCall.from_bytes(part) for part in parts if part.strip(b"\0")]


@contextmanager
def counting(groups: Groups, tally: Tally, envelope: PPEnvelope) -> Iterator[ChunkPlan]:
    """Count stage 1's calls while the body computes this chunk by its plan, and compare them.

    The last comparison is at the chunk's end: it catches a rank that made fewer collectives, before the
    result leaves and before the other ranks' next call meets a call of another chunk.

    Collective, Raises: As ``compare``, if this chunk is due for an exchange; else none, as ``SharedCalls``.
    """
    assert envelope.plan is not None, "the session lets no INFER pass without a plan"  # noqa: S101
    tally.begin(envelope.ids, envelope.plan)
    shared = None if tally.comparing else tally.shared
    _inside.tally = tally
    try:
        if shared is not None:
            shared.begin(envelope.ids)
        with seeing(groups, tally) if tally.comparing else nullcontext():
            yield envelope.plan
        if tally.comparing:
            compare(groups, tally, "")
        elif shared is not None:
            tally.odd = shared.end(*tally.digest, returns=tally.returns)
    finally:
        _inside.tally = None
        tally.end()
        if shared is not None:
            shared.leave()


def seeing(groups: Groups, tally: Tally | None) -> TorchDispatchMode:
    """Return a context that checks each collective of this thread before the backend is called.

    It also sees functional collectives, which DTensor and compiled code call and ``OnlyGroup`` does not see.
    It costs some 10 us for every operation of torch, so it is used only in the first chunks.

    Args:
        groups: This rank's groups.
        tally: Counts and compares the mesh ranks' collectives on ``tp_pg``; ``None`` on rank 0.
    """

    def meet(func: Any, named: dict[str, Any], call: Callable[[], Any]) -> Any:  # noqa: ANN401
        if "process_group" in named:
            group = dist.ProcessGroup.unbox(named["process_group"])
        elif "group_name" in named:
            group = c10d._resolve_process_group(named["group_name"])  # type: ignore[attr-defined]
        else:
            return framed(call)()  # a wait, or a wrapper of a tensor
        name, frame = func._schema.name.partition("::")[2].strip("_"), sys._getframe(1)
        is_message = "send" in name or "recv" in name
        with _Noting():
            _check(group, name)
            if tally is not None and not is_message and not tally.shows:
                tally.collectives += 1
                tally.site = lines_from(frame)
                compare(groups, tally, _operation(name, named, frame, groups.topology.mesh_ranks))
        return call()

    return operators.seeing(meet)


def _operation(name: str, named: dict[str, Any], frame: FrameType, ranks: Sequence[int]) -> str:
    """Return a collective in words; without a shape if ranks may rightly pass different tensors."""
    room = ("output_tensors",) if name in ("allgather", "scatter") else OPERANDS  # for what others give
    passed = next((named[key] for key in room if key in named), None)
    tensors = alike(passed, sized=name != "alltoall" and not any(map(named.get, SPLITS)))
    reduction = named.get("reduce_op")
    for short, full in WORDS.items():
        name = name.replace(short, full)
    if reduction is not None and not isinstance(reduction, str):  # boxed; the function's frame has it unboxed
        functions = (each for each in outwards(frame) if each.f_code.co_filename == c10d.__file__)
        reduction = next((each.f_locals["op"] for each in functions if "op" in each.f_locals), None)
    root = named.get("root_rank", named.get("src")) if name in ROOTS else None
    return operation(name, tensors, reduction, root, ranks)


class OnlyGroup:
    """While the body runs on this thread, its collectives may use only this group, and it may create none.

    Args:
        groups: This rank's groups.
        name: The group; ``None``: no group at all.

    Raises:
        LocalProtocolError: From the offending call, before the backend is called; names both groups
            (the rank that made the call).
    """

    def __init__(self, groups: Groups, name: str | None) -> None:
        install()
        self._allowed = Allowed(groups, name, groups[name] if name else None)

    def __enter__(self) -> None:
        self._outer = getattr(_inside, "allowed", None)
        _inside.allowed, _inside.refused = self._allowed, None

    def __exit__(self, *exc_info: object) -> None:
        _inside.allowed = self._outer


class _Noting:
    """Keeps what a guard refuses, for ``heed``. Every collective goes through it: it is no generator."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, LocalProtocolError):
            _inside.refused = error


def heed(which: WhichChunk | None = None) -> None:
    """Raise again what a guard refused on this thread and the program caught: the call was not made."""
    refused, _inside.refused = getattr(_inside, "refused", None), None
    if refused is not None:
        raise refused.at(**(which or {}))


def guard_loop(groups: Groups, which: WhichChunk | None) -> None:
    """Guard a user's own loop on this thread, while a chunk is in hand (mesh) or on its way (rank 0).

    Args:
        groups: This rank's groups.
        which: The chunk; ``None``: refuse nothing from now on.
    """
    name = None if groups.role is Role.STAGE0 else "tp_pg"
    _inside.allowed = None if which is None else Allowed(groups, name, groups[name] if name else None, which)


def _check(group: Any, call: str) -> None:  # noqa: ANN401  a ProcessGroup, None, or the non-member mark
    allowed: Allowed | None = getattr(_inside, "allowed", None)
    if allowed is not None and (refused := getattr(_inside, "refused", None)) is not None:
        raise refused  # the program caught it, and its next collective would stand alone
    if allowed is None or (group is allowed.handle and group is not None):
        return
    functions = [f for f in outwards(sys._getframe(1)) if f.f_code.co_filename == c10d.__file__]
    call = functions[-1].f_code.co_name if functions else call  # `recv` came as `irecv`
    groups, name = allowed.groups, allowed.name
    names = {id(h): group_name for group_name, h in groups.handles().items()}
    used = names.get(id(group), "another group")
    if group is None or group is dist.group.WORLD or used == "world_pg":
        used = "the default group (world_pg)"
    if allowed.loop is not None:
        if used == "another group" or (used.startswith("the default") and allowed.is_jobs):
            return
        raise _refusal(allowed, f"called {call} on {used}", "group=plane.tp.group")
    raise LocalProtocolError(
        f"Stage code called {call} on {used}; inside "
        + (f"stage 1 only {name} may be used." if name else "stage 0 none may be used."),
        where={"rank": groups.rank, "role": str(groups.role), "group": name},
        check_first="pass the mesh's group, `context.tp.group`, or call `context.tp.all_reduce`"
        if name
        else "stage 0 is one rank: what is to be summed belongs into stage 1",
    )


def _refusal(allowed: Allowed, did: str, instead: str) -> LocalProtocolError:
    """Return the error for a user's own loop; ``instead`` is what a mesh rank may have meant."""
    groups = allowed.groups
    if allowed.name is None:
        what = "while chunks were on their way; the mesh computes them, and does not come."
        check_first = "all ranks together: before the loop, after it, or when every result has been taken"
    else:
        what = "between a chunk and its answer; rank 0 does something else there."
        check_first = f"{instead}; all ranks together: before the loop, or after it"
    return LocalProtocolError(
        f"The loop {did} {what}",
        where={"rank": groups.rank, "role": str(groups.role), "group": allowed.name, **(allowed.loop or {})},
        check_first=check_first,
    )


def peer_of(error: BaseException, groups: Groups) -> int | None:
    """Return the mesh rank for whose half of a message a call waited that broke; ``None``: it is not known.

    The backend's error names a host and a port. Of a handle's wait there is no call that has the rank.
    """
    mesh, frames = groups.handles().get("tp_pg"), walk_tb((error.__cause__ or error).__traceback__)
    calls = (f for f, _ in frames if f.f_code.co_filename == c10d.__file__ and f.f_code.co_name in MESSAGES)
    call = next(calls, None)
    if mesh is None or call is None or call.f_locals["group"] is not mesh:
        return None
    whom = MESSAGES[call.f_code.co_name]
    index, rank = call.f_locals.get(f"group_{whom}"), call.f_locals.get(whom)
    if index is None and rank is not None:
        index = dist.get_group_rank(mesh, rank)
    return groups.topology.mesh_ranks[index] if index is not None else None


def _check_new(*, of_members: bool) -> None:
    """Refuse to create a group; a user's loop may, if only members do or the default group is the job's."""
    allowed: Allowed | None = getattr(_inside, "allowed", None)
    if allowed is None:
        return
    if allowed.loop is not None and not of_members and not allowed.is_jobs:
        did = "was about to make a process group, which every rank of the job must make at once,"
        raise _refusal(allowed, did, "`plane.device_mesh`, `plane.tp.group`")
    if allowed.loop is None:
        groups, name = allowed.groups, allowed.name
        raise LocalProtocolError(
            "Stage code was about to make a process group, which every rank of the job must make at once; "
            "the other ranks do something else now.",
            where={"rank": groups.rank, "role": str(groups.role), "group": name},
            check_first="`context.tp.device_mesh` in place of init_device_mesh, `context.tp.group` in place "
            "of new_group",
        )


def keep(groups: Groups | None) -> None:
    """Let this thread destroy no group of its pipeline (``None``: any), and forget what it was refused."""
    _inside.joined, _inside.refused = groups, None


def _check_destroyed(group: object) -> None:
    """Refuse to destroy any group in stage code, and the pipeline's groups in a user's own loop."""
    allowed: Allowed | None = getattr(_inside, "allowed", None)
    groups: Groups | None = getattr(_inside, "joined", None)
    if allowed is not None and allowed.loop is None:
        groups, who = allowed.groups, "Stage code"
    elif groups is not None and group in groups.handles().values():
        who = "The loop"
    else:
        return
    if sys.exc_info()[1] is not None:  # an error is on its way out, and is the one to report
        return
    raise LocalProtocolError(
        f"{who} was about to destroy process groups that the pipeline uses, and destroys itself at its end.",
        where={"rank": groups.rank, "role": str(groups.role)},
        check_first="leave destroy_process_group out, or call it after the `with` block of `join`",
    )


def _lending(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a method of a group that notes the handle, if the mesh's group gives it to the program."""

    @wraps(method)
    def lending(group: c10d.ProcessGroup, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        work, caller = method(group, *args, **kwargs), sys._getframe(1)
        allowed: Allowed | None = getattr(_inside, "allowed", None)
        # Without ``async_op`` torch's own function waits.
        if allowed is not None and group is allowed.handle and caller.f_locals.get("async_op"):
            lend(work, line_from(caller))
        return work

    return lending


def install() -> None:
    """Hook the membership test that every collective makes first, and naming and end of every group; once.

    The first two are private to torch, but exist in every supported version. They see calls under whatever
    name the user imported. ``tests/multiproc`` fails if a version drops one. ``destroy_process_group`` calls
    a group's ``shutdown``. The methods of a handle, which are public, get their frame (``backend_wait``).
    """
    original, naming = c10d._rank_not_in_group, c10d._process_group_name
    if getattr(original, "_ppwork", False):
        return
    shutdown = c10d.ProcessGroup.shutdown

    def checked(group: c10d.ProcessGroup | None) -> bool:
        caller = sys._getframe(1)
        if caller.f_code.co_name not in QUERIES:
            with _Noting():
                _check(group, caller.f_code.co_name)
                if (shared := calls_of_this_thread()) is not None:
                    shared.call(group, caller)
        return bool(original(group))

    def named(ranks: Any, use_hashed_name: Any) -> Any:  # noqa: ANN401
        _check_new(of_members=bool(use_hashed_name))  # torch hashes it if only members create the group
        return naming(ranks, use_hashed_name)

    def ended(group: c10d.ProcessGroup) -> None:
        _check_destroyed(group)
        shutdown(group)

    checked._ppwork = True  # type: ignore[attr-defined]
    c10d._rank_not_in_group, c10d._process_group_name = checked, named
    c10d.ProcessGroup.shutdown = ended  # type: ignore[method-assign, assignment]
    for name in set(ASKS).intersection(dir(c10d.Work)):
        setattr(c10d.Work, name, framed(getattr(c10d.Work, name)))
    for name in (name for name in dir(c10d.ProcessGroup) if name.startswith(GIVES_HANDLES)):
        setattr(c10d.ProcessGroup, name, _lending(getattr(c10d.ProcessGroup, name)))
