"""Asks every other host for its time, once, at start-up; ``clocks`` interprets the answers."""

from __future__ import annotations

import msgspec
import torch
import torch.distributed as dist

from ppwork.protocol.backend_errors import naming_peers
from ppwork.protocol.topology import STAGE0_RANK
from ppwork.records.clocks import CLOCK, SAME, Clock, Offset, Round, best, ranks_elsewhere, whose_clock
from ppwork.records.spans import Recorder
from ppwork.runtime.groups import Groups
from ppwork.runtime.membership import gather

ROUNDS = 16
"""The first round pays for the connection; of the others at least some meet no delay."""


def settle_clocks(groups: Groups, recorder: Recorder, names: list[str] | None = None) -> None:
    """Record how far this rank's clock is ahead of rank 0's, and which clock every other rank uses.

    Args:
        groups: This rank's, right after ``groups.join``.
        recorder: This rank's recorder.
        names: Names of all ranks' clocks, if they are known.

    Raises:
        PeerTimeoutError, PeerLostError: As ``estimate_offset``.

    Collective:
        As ``estimate_offset``.
    """
    clock, names = Clock.of_this_host(), names or gather_clocks(groups)
    recorder.instant(CLOCK, figures=msgspec.structs.asdict(estimate_offset(groups, clock, names)))
    for rank, name in enumerate(names):
        if rank != groups.rank:
            recorder.write(whose_clock(rank, name))


def gather_clocks(groups: Groups) -> list[str]:
    """Return the names of all ranks' clocks; each name begins with its host's name.

    Raises:
        PeerTimeoutError: A rank did not come (the ranks that waited for it).

    Collective:
        The store, all ranks.
    """
    mine = Clock.of_this_host().name.encode()
    return [
        name.decode() for name in gather(groups.store, "clock", mine, groups.rank, groups.topology.world_size)
    ]


def estimate_offset(groups: Groups, clock: Clock, names: list[str]) -> Offset:
    """Return how far this rank's clock is ahead of rank 0's.

    The names of all clocks, which all ranks read from the store, decide which ranks exchange anything (rule
    R5). Ranks that share a clock get the same offset, so their spans stay exactly aligned.

    Args:
        groups: Right after ``groups.join``: no other call may be under way on ``world_pg``.
        clock: The clock of this rank's spans.
        names: Names of all ranks' clocks.

    Raises:
        PeerTimeoutError: A rank did not come, or did not answer in time (the ranks that waited for it).
        PeerLostError: A rank left meanwhile (its partner).

    Collective:
        ``world_pg`` between rank 0 and each rank that has another clock, one clock after the other. Runs on
        the main thread, as no lane uses ``world_pg`` (rule R7).

    Blocks:
        At most ``timeout_s`` for each step.
    """
    elsewhere = ranks_elsewhere(names)
    if groups.rank == STAGE0_RANK:
        for ranks in elsewhere:
            offset = best(_ask(groups, clock, ranks[0]) for _ in range(ROUNDS))
            for rank in ranks:
                _send(groups, rank, offset.offset_ns, offset.error_ns)
        return SAME
    mine = next((ranks for ranks in elsewhere if groups.rank in ranks), None)
    if mine is None:
        return SAME
    if groups.rank == mine[0]:
        for _ in range(ROUNDS):
            _receive(groups, STAGE0_RANK, 1)
            _send(groups, STAGE0_RANK, clock.now_ns())
    return Offset(*_receive(groups, STAGE0_RANK, 2))


def _ask(groups: Groups, clock: Clock, peer: int) -> Round:
    left_ns = clock.now_ns()
    _send(groups, peer, 0)
    (peer_ns,) = _receive(groups, peer, 1)
    return Round(left_ns, peer_ns, clock.now_ns())


def _send(groups: Groups, peer: int, *values: int) -> None:
    with naming_peers("clock exchange", rank=groups.rank, group="world_pg", peer=peer):
        dist.send(torch.tensor(values, dtype=torch.int64), group=groups["world_pg"], group_dst=peer)


def _receive(groups: Groups, peer: int, count: int) -> list[int]:
    values = torch.empty(count, dtype=torch.int64)
    with naming_peers("clock exchange", rank=groups.rank, group="world_pg", peer=peer):
        dist.recv(values, group=groups["world_pg"], group_src=peer)
    return [int(value) for value in values]
