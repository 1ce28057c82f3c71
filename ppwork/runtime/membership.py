"""This process's membership in a pipeline, and the store through which the pipeline's ranks find each other.

A pipeline uses all ranks of a job or some of them. If the job has no default group, the pipeline makes one of
its own ranks. If the job has one, the pipeline adds groups, and later destroys only those (``groups``). The
pipeline's keys in the store have a prefix of the run, the attempt, its ranks, and the session: how often this
process has joined with these ranks.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import psutil
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d
from torch.distributed.distributed_c10d import PrefixStore, Store
from torch.distributed.rendezvous import rendezvous

from ppwork.errors import PeerTimeoutError, PlanError, listed, named_ranks
from ppwork.process import TORCHRUN_VARIABLE
from ppwork.protocol.plan import STORE_VARIABLE

LOOK_S = 1.0
"""Seconds between two looks at the processes of ranks that have not come to ``join``."""
_stores: dict[tuple[str, int], Store] = {}
"""Stores that this process has opened, by address and job rank: a later session uses the same connection."""
_sessions: dict[Membership, int] = {}
"""Number of sessions that this process has begun, by membership."""
_open: dict[Membership, bool] = {}
"""Memberships whose session is not closed, and whether the session made the default group."""


@dataclass(frozen=True)
class Membership:
    """This process's place in its job, and in the pipeline that it joins.

    Attributes:
        job_rank: Rank in the job: in the default group if there is one, else torchrun's rank.
        job_size: Number of ranks of the job.
        ranks: The pipeline's ranks, as ranks of the job, ascending: stage 0 first, then the mesh.
        local_rank: Rank on this host; the CUDA device's index.
        in_group: Whether the job has its own default group.
    """

    job_rank: int
    job_size: int
    ranks: tuple[int, ...]
    local_rank: int
    in_group: bool = False

    @property
    def rank(self) -> int:
        """Rank in the pipeline. In all other modules a bare ``rank`` is this one."""
        return self.ranks.index(self.job_rank)

    @property
    def world_size(self) -> int:
        """Number of ranks of the pipeline."""
        return len(self.ranks)

    @classmethod
    def here(cls, ranks: Sequence[int] | None = None) -> Membership:
        """Return this process's membership in a pipeline of these ranks of the job; default: all ranks.

        Raises:
            PlanError: torchrun has not started this process, and it has no default group; ``ranks`` do not
                ascend, or are not in the job; or this process is not among them (this process, at once).
        """
        in_group = dist.is_initialized() and not any(_open.values())
        job_rank, local_rank, job_size = _of_default_group() if in_group else _of_torchrun()
        chosen = list(range(job_size) if ranks is None else ranks)
        if chosen != sorted({*chosen} & {*range(job_size)}):
            raise PlanError(
                f"The pipeline's ranks were {chosen}; they must ascend, and the job has 0..{job_size - 1}.",
                where={"rank": job_rank},
                check_first="`ranks` of join: stage 0 first, then the mesh",
            )
        if job_rank not in chosen:
            raise PlanError(
                f"Rank {job_rank} of the job joined a pipeline of the ranks {chosen}.",
                where={"rank": job_rank},
                check_first="each rank calls join with the ranks of its own pipeline, or does not call it",
            )
        return cls(job_rank, job_size, tuple(chosen), local_rank, in_group)

    def begin(self) -> int:
        """Begin a session, and return its number among the sessions with these ranks.

        Raises:
            PlanError: This process is in a session with these ranks, or in one that made the default group;
                or the job's default group is bound to a device (this process, at once).
        """
        if self in _open or any(_open.values()):
            raise PlanError(
                f"Rank {self.job_rank} is in a pipeline that it has not left.",
                where={"rank": self.rank},
                check_first="its `with` block ends well before the next join: a session that failed ends "
                "with its process; for two pipelines at once call `init_process_group` first",
            )
        if self.in_group and c10d._get_default_group().bound_device_id is not None:
            raise PlanError(
                "The default group is bound to a device: torch would have all ranks of the job make each "
                "group of some.",
                where={"rank": self.rank},
                check_first="leave `device_id` of init_process_group out",
            )
        session = _sessions.get(self, 0)
        _sessions[self] = session + 1
        _open[self] = False
        return session

    def has_lost(self, missing: Sequence[int]) -> bool:
        """Say whether some of these ranks of the pipeline will never come: their processes have ended.

        Only torchrun starts all ranks at once; by any other starter a rank may be yet to come.
        """
        pids = _pids_by_rank() if os.environ.get(TORCHRUN_VARIABLE) else {}
        return _all_are_here(pids) and any(self.ranks[rank] not in pids for rank in missing)

    def explained(self, error: PeerTimeoutError, store: Store) -> PeerTimeoutError:
        """Replace the error of missing ranks by one that says what they joined instead, or who lives."""
        of_job = store.underlying_store  # type: ignore[attr-defined]  # its prefix has no session
        said = {rank: _said(of_job, rank) for rank in self.ranks}
        others = [
            f"rank {rank} of the job joined {s}"
            for rank, s in said.items()
            if s not in (None, said[self.job_rank])
        ]
        if not others:
            return _with_lives(error, {self.ranks.index(job): job for job, s in said.items() if s is None})
        what = f"{error.what} This rank joined {said[self.job_rank]}; {'; '.join(others)}."
        check = "do all ranks of a pipeline give the same `ranks`, and join equally often?"
        return PeerTimeoutError(what, where=error.where, check_first=check)

    def owns_default_group(self) -> None:
        """Note that the session has made the default group of this process."""
        _open[self] = True

    def end(self) -> None:
        """Note that the session has left nothing behind."""
        _open.pop(self, None)


def _of_torchrun() -> tuple[int, int, int]:
    try:
        rank, local_rank, world = (int(os.environ[name]) for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    except KeyError as missing:
        raise PlanError(
            f"The environment has no {missing.args[0]}: torchrun has not started this process.",
            check_first="torchrun --standalone --nproc-per-node 3 and your script, for a mesh of 2",
        ) from None
    return rank, local_rank, world


def _of_default_group() -> tuple[int, int, int]:
    return dist.get_rank(), int(os.environ.get("LOCAL_RANK", dist.get_rank())), dist.get_world_size()


def open_store(membership: Membership, session: int, timeout_s: float) -> Store:
    """Return the store of this pipeline, under a prefix of this run, attempt and session.

    A restart reads no keys of the attempt before. A run reads no keys of another run in a store file that was
    left behind (F21). Without torchrun, runs cannot be told apart; a store with old keys is then refused.

    Raises:
        PlanError: The port in torchrun's variables cannot be opened (rank 0); or this rank has been in the
            store before, because a crash left the file or two ranks have the same number; or the folder of
            the store's file does not exist (that rank).
        PeerTimeoutError: Nothing answers at that port (other ranks).
    """
    path = os.environ.get(STORE_VARIABLE)
    if membership.in_group:
        store: Store = c10d._get_default_store().clone()  # type: ignore[attr-defined]  # for its own timeout
    else:
        address = path or f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
        key = (address, membership.job_rank)
        if path and key not in _stores and not Path(path).absolute().parent.is_dir():
            # torch would try to open the file for five minutes, and hold the GIL meanwhile.
            what = f"The folder of the run's store, {path}, is not there."
            raise PlanError(
                what, where={"rank": membership.rank}, check_first="who removed it? is it on this host?"
            )
        # Never closed: the store file goes with its last user, and torchrun's store may be rank 0's own.
        store = _stores.get(key) or (
            dist.FileStore(path, membership.job_size)  # type: ignore[attr-defined]
            if path
            else _torchruns_store(membership.job_rank, membership.job_size, timeout_s)
        )
        _stores[key] = store
    store.set_timeout(timedelta(seconds=timeout_s))
    run_id = os.environ.get("TORCHELASTIC_RUN_ID", "")
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    members = "-".join(map(str, membership.ranks))
    store = PrefixStore(f"ppwork/{run_id}/{attempt}", store)
    store.set(f"of/{membership.job_rank}", f"{list(membership.ranks)}, session {session}")
    store = PrefixStore(f"{members}/{session}", store)
    if store.add(f"came/{membership.rank}", 1) > 1:  # atomic: of two ranks at once, one is the second
        raise PlanError(
            f"Rank {membership.job_rank} has been in the store {path or 'at MASTER_ADDR'} before.",
            where={"rank": membership.rank},
            check_first=f"was it left by another run? give all ranks a new {STORE_VARIABLE}; "
            f"or do two ranks have RANK={membership.job_rank}?",
        )
    return store


def _torchruns_store(rank: int, world_size: int, timeout_s: float) -> Store:
    timeout = timedelta(seconds=timeout_s)
    try:
        if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":
            store: Store = next(iter(rendezvous("env://", rank, world_size, timeout=timeout)))[0]
        else:  # torch would have rank 0 wait here for all ranks, and not say who is missing: `gather` does
            at = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
            store = dist.TCPStore(  # type: ignore[attr-defined]
                *at, world_size, rank == 0, timeout, wait_for_workers=False, multi_tenant=True
            )
    except (KeyError, ValueError) as error:
        what = f"Started without torchrun, MASTER_ADDR and MASTER_PORT say where rank 0 listens: {error!r}"
        raise PlanError(what, where={"rank": rank}, check_first="set both alike for all ranks") from None
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


def gather(
    store: Store,
    key: str,
    value: bytes,
    rank: int,
    world_size: int,
    has_lost: Callable[[Sequence[int]], bool] = lambda _: False,
    more_s: float = 0.0,
) -> list[bytes]:
    """Exchange one value per rank, UTF-8 text, through the store.

    ``has_lost`` is asked about once a second if some of the ranks that have not come will never come;
    ``more_s`` is added to the store's timeout, for ranks that may end at the same bound and say more.

    Raises:
        PeerTimeoutError: Some ranks did not come within the store's timeout, or will never come; names
            them (every rank that came).

    Blocks:
        Until every rank has called this with the same key; at most the store's timeout, for all ranks.
    """
    keys = [f"{key}/{peer}" for peer in range(world_size)]
    store.set(keys[rank], value.decode())
    bound_s, began_s = store.timeout.total_seconds() + more_s, time.monotonic()  # type: ignore[attr-defined]
    waited_s = 0.0
    while True:
        try:
            # `get` would allow each key a whole timeout.
            store.wait(keys, timedelta(seconds=max(0.01, min(LOOK_S, bound_s - waited_s))))
            return [store.get(each) for each in keys]
        except RuntimeError as error:  # DistStoreError; DistNetworkError when the store's host is gone
            missing = [peer for peer, each in enumerate(keys) if not _has(store, each)]
            waited_s = time.monotonic() - began_s
            if not missing or (rank not in missing and waited_s < bound_s and not has_lost(missing)):
                continue
            step = "come to `join`" if key == "parity" else f"reach {key!r} at start-up"
            after = f"{bound_s:g}" if waited_s >= bound_s else f"{waited_s:.1f}"
            what = f"{named_ranks(missing).capitalize()} did not {step} within {after} s."
            if rank in missing:  # this rank, which has come
                what = f"The store was lost before all ranks had reached {key!r}: "
                what += "rank 0 or torchrun has ended."
            raise PeerTimeoutError(
                what,
                where={"rank": rank, "peer": next(iter(missing), None)},
                check_first="what did they say, and where do they stand? For a longer load raise `timeout_s`",
            ) from error


def _with_lives(error: PeerTimeoutError, missing: Mapping[int, int]) -> PeerTimeoutError:
    """Return the error of ranks that have not come to ``join`` with which of them live on this host.

    Args:
        error: It names the ranks.
        missing: By rank of the pipeline its rank in the job.
    """
    pids = _pids_by_rank()
    if alive := [f"rank {rank} (pid {pids[job]})" for rank, job in missing.items() if job in pids]:
        what = f"{error.what} {listed(alive).capitalize()} {'are' if alive[1:] else 'is'} alive."
        check = "does it load for longer (raise `timeout_s`), or stand before `join`? "
        check += "`ppwork diagnose` tells while it stands"
    elif missing and _all_are_here(pids):
        ended = named_ranks([*missing]).capitalize()
        what = f"{error.what} {ended} {'have' if len(missing) > 1 else 'has'} ended."
        check = "what did it say? which path of its program ends without `join`?"
    else:
        return error
    return PeerTimeoutError(what, where=error.where, check_first=check)


def _pids_by_rank() -> dict[int, int]:
    """Return the processes of this host's ranks, this one's siblings, by rank of the job."""
    pids: dict[int, int] = {}
    with suppress(psutil.Error):  # our parent is gone
        for process in psutil.Process(os.getppid()).children():
            with suppress(psutil.Error, OSError, KeyError, ValueError):  # gone, of another user, no rank
                pids[int(process.environ()["RANK"])] = process.pid
    return pids


def _all_are_here(pids: Mapping[int, int]) -> bool:
    """Say whether the job has all its ranks on this host, so that one which is not in ``pids`` has ended."""
    is_whole = os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE", "")
    return is_whole and os.getpid() in pids.values()


def _said(store: Store, rank: int) -> str | None:
    return store.get(f"of/{rank}").decode() if _has(store, f"of/{rank}") else None


def _has(store: Store, key: str) -> bool:
    try:
        return bool(store.check([key]))
    except RuntimeError:  # the store is gone: no rank can be said to have come
        return False
